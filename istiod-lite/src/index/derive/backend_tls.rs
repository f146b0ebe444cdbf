// SPDX-License-Identifier: Apache-2.0
//! What BackendTLSPolicies come to: how TLS is begun with a port of a service, and what their authors are told.
//!
//! A waypoint may lead to a service without serving it, so that what is said stands under the service itself.

use proto::waypoint as wire;

use super::{Derived, Index};
use crate::{
    facts::{NamespacedName, service::ServicePort},
    status::{
        Condition, Verdict,
        routes::{self, ParentStatus},
    },
    translate::{
        backend_tls::{Authorities, BackendTls, MOST_BYTES, Target},
        route::{Host, ParentKey, Unresolved, said},
    },
};

const INVALID_REFERENCE: &str = "InvalidCACertificateRef";

impl Index {
    /// How TLS is begun with a port of a host, if a policy says so that is of the namespace that has the host.
    ///
    /// # Errors
    /// A policy says so and can't be honoured.
    pub(super) fn tls_for(
        &self,
        host: &str,
        namespace: &str,
        port: u16,
    ) -> Result<Option<wire::Tls>, Unresolved> {
        if self.world.tls_policies.is_empty() {
            return Ok(None);
        }
        let service = self.name_of_host(host).map(ParentKey::Service);
        let entries = self.claimants(host).map(|(name, _)| name.clone());
        let keys = service.into_iter().chain(entries.map(ParentKey::Entry));
        let keys = keys.filter(|key| *key.name().namespace == *namespace);
        let found = keys.filter_map(|key| {
            let ports = self.ports_of(&key)?;
            let port = ports.iter().find(|known| known.port == port)?;
            let own = self.oldest_tls(&key, Some(&port.name));
            own.or_else(|| self.oldest_tls(&key, None))
        });
        let Some((name, policy)) = found.min_by_key(|(name, policy)| (policy.created, *name))
        else {
            return Ok(None);
        };
        let tls = self.honoured(policy).map(Some);
        tls.map_err(|(_, words)| {
            let words = format!("BackendTLSPolicy {name} can't be honoured: {words}");
            Unresolved::new(Unresolved::PROTOCOL, words)
        })
    }

    /// The policy that counts for a port of a service, or for all that have none of their own.
    fn oldest_tls(
        &self,
        key: &ParentKey,
        port: Option<&str>,
    ) -> Option<(&NamespacedName, &BackendTls)> {
        let policies = self.world.tls_policies_by_target.get(key)?;
        let policies = policies
            .iter()
            .filter_map(|name| self.world.tls_policies.get_key_value(name));
        let is_for =
            |target: &Target| target.key.as_ref() == Ok(key) && target.port.as_deref() == port;
        policies
            .filter(|(_, policy)| policy.targets.iter().any(is_for))
            .min_by_key(|(name, policy)| (policy.created, *name))
    }

    /// # Errors
    /// Why not, with a word of Gateway API.
    fn honoured(&self, policy: &BackendTls) -> Result<wire::Tls, (&'static str, String)> {
        if let Some(words) = &policy.invalid {
            return Err(("Invalid", words.clone()));
        }
        let (given, faults) = self.authorities(policy);
        let given_authorities = match &policy.authorities {
            Authorities::System => String::new(),
            Authorities::Listed(_) if given.is_empty() => {
                let words: Vec<String> = faults.into_iter().map(|(_, words)| words).collect();
                return Err(("NoValidCACertificate", said(&words)));
            }
            Authorities::Listed(_) if given.len() > MOST_BYTES => {
                let words = format!("its certificates are longer than {MOST_BYTES} bytes together");
                return Err(("NoValidCACertificate", words));
            }
            Authorities::Listed(_) => given,
        };
        Ok(wire::Tls {
            server_name: policy.server_name.clone(),
            subject_alt_names: policy.names.clone(),
            given_authorities,
            ..wire::Tls::default()
        })
    }

    /// The certificates that a policy names, and which of its references lead to none.
    fn authorities(&self, policy: &BackendTls) -> (String, Vec<(&'static str, String)>) {
        let (mut given, mut faults) = (String::new(), Vec::new());
        let Authorities::Listed(listed) = &policy.authorities else {
            return (given, faults);
        };
        for (position, reference) in listed.iter().enumerate() {
            let at = format!("spec.validation.caCertificateRefs[{position}]");
            let read = match reference {
                Err(words) => Err(("InvalidKind", format!("{at}: {words}"))),
                Ok(name) => match self.world.bundles.get(name) {
                    None => Err((
                        INVALID_REFERENCE,
                        format!("{at}: there is no ConfigMap {name}"),
                    )),
                    Some(Err(words)) => Err((
                        INVALID_REFERENCE,
                        format!("{at}: ConfigMap {name}: {words}"),
                    )),
                    Some(Ok(pem)) => Ok(pem),
                },
            };
            match read {
                Ok(pem) => {
                    given += pem;
                    given += "\n";
                }
                Err(fault) => faults.push(fault),
            }
        }
        (given, faults)
    }

    pub(super) fn derive_tls_policy(&self, name: &NamespacedName) -> Option<Derived> {
        let policy = self.world.tls_policies.get(name)?;
        let (_, faults) = self.authorities(policy);
        let refs = match faults.first() {
            None => routes::refs_resolved(),
            Some((reason, _)) => {
                let words: Vec<&String> = faults.iter().map(|(_, words)| words).collect();
                routes::refs_unresolved(reason, said(&words))
            }
        };
        let parents = policy.targets.iter().map(|target| ParentStatus {
            reference: target.reference.clone(),
            conditions: vec![self.accepted(name, policy, target), refs.clone()],
        });
        Some(Derived {
            parents: parents.collect(),
            ..Derived::default()
        })
    }

    fn accepted(&self, name: &NamespacedName, policy: &BackendTls, target: &Target) -> Condition {
        let no = |reason, words: String| routes::accepted(Verdict::False, reason, words);
        let key = match &target.key {
            Ok(key) => key,
            Err(words) => return no("Invalid", words.clone()),
        };
        let Some(ports) = self.ports_of(key) else {
            return no(
                "TargetNotFound",
                format!("there is no service {}", key.name()),
            );
        };
        if let Some(port) = &target.port
            && !ports.iter().any(|known| known.name == *port)
        {
            let words = format!("{} has no port that is named {port:?}", key.name());
            return no("TargetNotFound", words);
        }
        match self.oldest_tls(key, target.port.as_deref()) {
            Some((other, _)) if other != name => {
                let words = format!("BackendTLSPolicy {other} is older and counts instead");
                return no("Conflicted", words);
            }
            _ => {}
        }
        match self.honoured(policy) {
            Err((reason, words)) => no(reason, format!("{words}: nothing is sent there")),
            Ok(_) => routes::accepted(Verdict::True, "Accepted", said(&policy.notes)),
        }
    }

    /// The ports of what a policy can be for.
    fn ports_of(&self, key: &ParentKey) -> Option<&[ServicePort]> {
        let here = self.world.inhabitants(&key.name().namespace)?;
        Some(match key {
            ParentKey::Service(name) => &here.services.get(&name.name)?.ports,
            ParentKey::Entry(name) => &here.entries.get(&name.name)?.ports,
        })
    }

    /// The names under which it is led to.
    pub(in crate::index) fn names_led_to(&self, key: &ParentKey) -> Vec<Host> {
        match key {
            ParentKey::Service(name) => {
                vec![self.mesh.hostname(&name.namespace, &name.name).into()]
            }
            ParentKey::Entry(name) => {
                let here = self.world.inhabitants(&name.namespace);
                let entry = here.and_then(|here| here.entries.get(&name.name));
                entry.map_or_else(Vec::new, |entry| entry.hosts.to_vec())
            }
        }
    }
}
