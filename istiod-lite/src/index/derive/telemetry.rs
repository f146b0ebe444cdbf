// SPDX-License-Identifier: Apache-2.0
//! What is told of the traffic of a service at its waypoint: which Telemetries concern it, from the broadest on.

use prost::Message as _;
use proto::waypoint as wire;

use super::{Derived, Index};
use crate::{
    catalogue::ResourceType,
    facts::{NamespacedName, Problem, mesh_config::ProviderKind},
    status::{self, Verdict},
    translate::{
        policy::TargetKey,
        telemetry::{self, Reach, Sink, Telemetry},
    },
};

impl Index {
    /// Of a service, or of all that a waypoint serves.
    pub(super) fn telemetry_for(
        &self,
        waypoint: &NamespacedName,
        service: Option<&TargetKey>,
    ) -> Option<wire::Telemetry> {
        let of_namespace = |namespace: &str| {
            self.oldest(|name, one| *name.namespace == *namespace && one.reach == Reach::All)
        };
        let named = |key: &TargetKey| self.oldest(|_, one| one.names(key));
        let root = &*self.mesh.root_namespace;
        let namespaces = [
            Some(root),
            Some(&*waypoint.namespace).filter(|own| *own != root),
            service
                .and_then(namespace_of)
                .filter(|own| *own != root && *own != &*waypoint.namespace),
        ];
        let class = self
            .world
            .gateway(waypoint)
            .map(|(gateway, _)| &gateway.class);
        let targets = [
            class.map(|class| TargetKey::Class(class.clone())),
            Some(TargetKey::Gateway(waypoint.clone())),
            service.cloned(),
        ];
        let broad = namespaces.into_iter().flatten().filter_map(of_namespace);
        let narrow = targets.iter().flatten().filter_map(named);
        let levels: Vec<&Telemetry> = broad.chain(narrow).collect();
        telemetry::merge(&levels, |name| self.sink(name))
    }

    /// The access logs of connections that have to do with a namespace's pods.
    pub(super) fn derive_connection_logs(&self, namespace: &str) -> Option<Derived> {
        let of_namespace = |namespace: &str| {
            self.oldest(|name, one| *name.namespace == *namespace && one.reach == Reach::All)
        };
        let root = &*self.mesh.root_namespace;
        let narrow = Some(namespace).filter(|own| *own != root);
        let levels = [Some(root), narrow].into_iter().flatten();
        let levels: Vec<&Telemetry> = levels.filter_map(of_namespace).collect();
        let everywhere = narrow.is_none();
        let sink = |name: &str| self.sink(name);
        let logs = telemetry::connections(namespace, everywhere, &levels, &sink)?;
        let body = logs.encode_to_vec().into();
        Some(Derived {
            resources: vec![(ResourceType::ConnectionLogs, namespace.to_owned(), body)],
            ..Derived::default()
        })
    }

    fn oldest(&self, concerns: impl Fn(&NamespacedName, &Telemetry) -> bool) -> Option<&Telemetry> {
        let all = self.world.telemetries.iter();
        let concerned = all.filter(|(name, one)| concerns(name, one));
        let oldest = concerned.min_by_key(|(name, one)| (one.created, *name));
        oldest.map(|(_, one)| one)
    }

    /// A provider of the mesh's configuration.
    fn sink(&self, name: &str) -> Result<Sink, String> {
        telemetry::sink(name, |name| {
            let mut providers = self.world.mesh_config.providers.iter();
            let found = providers.find(|provider| provider.name == name)?;
            Some(match &found.kind {
                Ok(ProviderKind::Other {
                    key,
                    backend,
                    settings,
                }) => {
                    let collector = backend.as_ref().map(|at| wire::Collector {
                        namespace: at.namespace.clone(),
                        hostname: at.hostname.clone(),
                        port: at.port.into(),
                    });
                    telemetry::provider(key, collector, settings)
                }
                Ok(ProviderKind::Authorizer(_)) => Err("is one that policies ask".to_owned()),
                Err(reason) => Err(reason.clone()),
            })
        })
    }

    /// What the author of a Telemetry is told.
    pub(super) fn derive_telemetry(&self, name: &NamespacedName) -> Option<Derived> {
        let written = self.world.telemetries.get(name)?;
        let mut gateways = Vec::new();
        let targets = self.found(written.targets(), &mut gateways);
        let unserved = written.unserved(|name| self.sink(name));
        let said = written.faults.iter().chain(&unserved);
        let said: Vec<String> = said.map(Problem::to_string).collect();
        let said = Some(said.join("; ")).filter(|said| !said.is_empty());
        let condition = match (&written.reach, said) {
            (Reach::Targets(_), said) => {
                status::policies::waypoint_accepted(&targets, said.as_deref(), None)
            }
            (Reach::Nothing, said) => Some(status::waypoint_accepted(
                Verdict::False,
                "UnsupportedValue",
                said.unwrap_or_default(),
            )),
            (Reach::All, Some(said)) => Some(status::waypoint_accepted(
                Verdict::True,
                "PartiallyInvalid",
                said,
            )),
            (Reach::All, None) => Some(status::waypoint_accepted(
                Verdict::True,
                "Accepted",
                "what its scope's waypoints serve is told of by it, and what connects to or from its scope's pods".to_owned(),
            )),
        };
        Some(Derived {
            conditions: condition.into_iter().collect(),
            problems: unserved,
            gateways,
            ..Derived::default()
        })
    }
}

fn namespace_of(key: &TargetKey) -> Option<&str> {
    match key {
        TargetKey::Service(name) | TargetKey::Entry(name) => Some(&name.namespace),
        TargetKey::Gateway(_) | TargetKey::Class(_) => None,
    }
}
