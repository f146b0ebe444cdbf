// SPDX-License-Identifier: Apache-2.0
//! How far the change from one root to another may go by now. Pure.
//!
//! ```text
//!  the files say                        it is taken
//!  (a) root-cert.pem: old and new       at once; certificates bring both roots from now on
//!  (b) ca-cert.pem and so on under new  once everybody with a certificate has got the new root with it
//!  (c) root-cert.pem: new               once nobody's certificate is signed under the old root any more
//! ```
//! In: what is in force, what the files say, who holds which certificate, here and of other replicas. Out: what comes into force, and what waits for
//! whom. What is in force stays so while something waits, so that a step that was made too early harms nobody.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use spiffe::SpiffeId;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use xxhash_rust::xxh64::Xxh64;

use super::replicas::{Behind, Other, Others};

/// How long an answer may be under way, or be lost and asked for again, before its holder counts as one who has it.
pub(super) const SETTLE: Duration = Duration::from_secs(10);

/// A root as those who verify know it: by name and key. Issued anew for the same key it is the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Anchor {
    subject: Box<[u8]>,
    key: Box<[u8]>,
}

impl Anchor {
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Self {
        Self {
            subject: certificate.subject().as_raw().into(),
            key: certificate.public_key().raw.into(),
        }
    }

    /// A short name for it, the same in every process.
    pub(super) fn id(&self) -> String {
        let mut hasher = Xxh64::new(0);
        // Lengths first, so that no other cut of the same bytes is the same.
        for part in [&self.subject, &self.key] {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        format!("{:016x}", hasher.digest())
    }

    #[cfg(test)]
    pub(super) fn named(name: &str) -> Self {
        Self {
            subject: name.as_bytes().into(),
            key: Box::from(&b"key"[..]),
        }
    }
}

/// One certificate of the bundle of roots.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) anchor: Anchor,
    pub(super) pem: String,
    pub(super) subject: String,
    /// In decimal, as proxies show it.
    pub(super) serial: String,
    pub(super) not_after: OffsetDateTime,
}

impl Root {
    pub(super) fn of(certificate: &X509Certificate<'_>, pem: String) -> Self {
        Self {
            anchor: Anchor::of(certificate),
            pem,
            subject: certificate.subject().to_string(),
            serial: certificate.tbs_certificate.serial.to_string(),
            not_after: certificate.validity().not_after.to_datetime(),
        }
    }

    pub(super) fn label(&self) -> String {
        format!("{:?} (serial {})", self.subject, self.serial)
    }
}

/// Whom an authority makes others trust, and by what it signs itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust<'a> {
    /// The root that its certificates lead to.
    pub(super) signer: &'a Anchor,
    pub(super) roots: &'a [Root],
}

impl Trust<'_> {
    fn root(&self, anchor: &Anchor) -> Option<&Root> {
        self.roots.iter().find(|root| root.anchor == *anchor)
    }
}

/// The newest certificate that somebody got, and the roots that came with it.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) identity: SpiffeId,
    /// Who asked for it.
    pub(super) caller: Arc<str>,
    pub(super) roots: Arc<BTreeSet<Anchor>>,
    pub(super) under: Anchor,
    pub(super) until: SystemTime,
    /// When other roots came with it than before, if that ever was.
    pub(super) changed: Option<Instant>,
}

impl Holder {
    pub(super) fn trusts(&self, anchor: &Anchor, now: Instant) -> bool {
        self.roots.contains(anchor) && self.is_settled(now)
    }

    /// Whether what it got last has arrived.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        let settled = |since: Instant| now.saturating_duration_since(since) >= SETTLE;
        self.changed.is_none_or(settled)
    }

    pub(super) fn label(&self) -> String {
        format!("{} by {}", self.identity, self.caller)
    }
}

/// By whose key certificates are signed from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    InForce,
    Wanted,
}

/// What comes into force.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) signer: Signer,
    pub(super) roots: Vec<Root>,
    /// Empty once all that the files say is in force.
    pub(super) waits: Vec<Wait>,
}

/// A part of what the files say that has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) what: Waiting,
    /// The root that it is about.
    pub(super) root: String,
    /// For how many certificates.
    pub(super) count: usize,
    /// For whom.
    pub(super) holders: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// To sign under this root: they do not trust it yet.
    ToSign,
    /// To drop this root: their certificates are signed under it.
    ToDrop,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            what,
            root,
            count,
            holders,
        } = self;
        match what {
            Waiting::ToSign => write!(
                f,
                "signing under {root} waits for {count} who do not trust it yet"
            )?,
            Waiting::ToDrop => write!(
                f,
                "dropping {root} waits for {count} whose certificates are signed under it"
            )?,
        }
        match holders.first() {
            Some(first) => write!(f, ", such as {first}"),
            None => Ok(()),
        }
    }
}

/// The files' roots are others than those in force, neither more nor fewer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "root-cert.pem lacks {lacks} and adds {adds}: nobody who trusts only the former could speak with who trusts only \
     the latter; keep both until everybody trusts both"
)]
pub(super) struct Swapped {
    lacks: String,
    adds: String,
}

/// Those of this replica and of others that a step waits for. Where nobody knows what others hold, for them.
fn waits_for(
    own: impl Iterator<Item = String>,
    others: &Others,
    behind: impl Fn(&Other) -> Vec<Behind>,
) -> (usize, Vec<String>) {
    let mut holders: Vec<String> = own.collect();
    let mut count = holders.len();
    match others {
        Others::Known(others) => {
            for (more, words) in others.iter().flat_map(behind) {
                count += more;
                holders.push(words);
            }
        }
        Others::Unknown => {
            count += 1;
            holders.push("other replicas, of which nothing can be read".to_owned());
        }
    }
    (count, holders)
}

/// Decides how much of `wanted` may come into force after `in_force`.
pub(super) fn step(
    in_force: Trust<'_>,
    wanted: Trust<'_>,
    holders: &[Holder],
    others: &Others,
    now: Instant,
) -> Result<Step, Swapped> {
    let lacks = roots_beyond(in_force, wanted);
    let adds = roots_beyond(wanted, in_force);
    if !lacks.is_empty() && !adds.is_empty() {
        return Err(Swapped {
            lacks: labels(&lacks),
            adds: labels(&adds),
        });
    }
    let mut waits = Vec::new();
    let mut signer = Signer::Wanted;
    if wanted.signer != in_force.signer {
        let own = holders
            .iter()
            .filter(|holder| !holder.trusts(wanted.signer, now))
            .map(Holder::label);
        let (count, behind) = waits_for(own, others, |other| other.distrust(wanted.signer));
        if !behind.is_empty() {
            signer = Signer::InForce;
            let root = wanted.root(wanted.signer);
            waits.push(Wait {
                what: Waiting::ToSign,
                root: root.map(Root::label).unwrap_or_default(),
                count,
                holders: behind,
            });
        }
    }
    let signs_under = match signer {
        Signer::Wanted => wanted.signer,
        Signer::InForce => in_force.signer,
    };
    let mut roots = wanted.roots.to_vec();
    for root in lacks {
        let own = holders
            .iter()
            .filter(|holder| holder.under == root.anchor)
            .map(Holder::label);
        let (count, under) = waits_for(own, others, |other| other.under(&root.anchor));
        if under.is_empty() && *signs_under != root.anchor {
            continue;
        }
        roots.push(root.clone());
        waits.push(Wait {
            what: Waiting::ToDrop,
            root: root.label(),
            count,
            holders: under,
        });
    }
    Ok(Step {
        signer,
        roots,
        waits,
    })
}

/// The roots of `one` that `other` has not.
fn roots_beyond<'a>(one: Trust<'a>, other: Trust<'_>) -> Vec<&'a Root> {
    let beyond = |root: &&Root| other.root(&root.anchor).is_none();
    one.roots.iter().filter(beyond).collect()
}

fn labels(roots: &[&Root]) -> String {
    let labels: Vec<_> = roots.iter().map(|root| root.label()).collect();
    labels.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(name: &str) -> Anchor {
        Anchor::named(name)
    }

    fn alone() -> Others {
        Others::Known(Vec::new())
    }

    fn root(name: &str) -> Root {
        Root {
            anchor: anchor(name),
            pem: name.into(),
            subject: name.into(),
            serial: "1".into(),
            not_after: OffsetDateTime::UNIX_EPOCH,
        }
    }

    fn roots(names: &[&str]) -> Vec<Root> {
        names.iter().map(|name| root(name)).collect()
    }

    fn holder(account: &str, trusts: &[&str], under: &str) -> Holder {
        Holder {
            identity: format!("spiffe://cluster.local/ns/shop/sa/{account}")
                .parse()
                .unwrap(),
            caller: "istio-system/ztunnel (pod ztunnel-a)".into(),
            roots: Arc::new(trusts.iter().map(|name| anchor(name)).collect()),
            under: anchor(under),
            until: SystemTime::UNIX_EPOCH,
            changed: None,
        }
    }

    /// A signer and its roots, as `signer: root root`.
    fn check(
        in_force: (&str, &[&str]),
        wanted: (&str, &[&str]),
        holders: &[Holder],
        expected: (&str, &[&str], &[Waiting]),
    ) {
        let (signers, bundles) = (
            [anchor(in_force.0), anchor(wanted.0)],
            [roots(in_force.1), roots(wanted.1)],
        );
        let [before, after] = [0, 1].map(|side: usize| Trust {
            signer: &signers[side],
            roots: &bundles[side],
        });
        let step = step(before, after, holders, &alone(), Instant::now()).unwrap();
        let signer = match step.signer {
            Signer::InForce => in_force.0,
            Signer::Wanted => wanted.0,
        };
        let names: BTreeSet<_> = step.roots.iter().map(|root| root.pem.as_str()).collect();
        let waits: Vec<_> = step.waits.iter().map(|wait| wait.what).collect();
        assert_eq!(
            (signer, names, &waits[..]),
            (expected.0, expected.1.iter().copied().collect(), expected.2),
            "{in_force:?} to {wanted:?} with {holders:?}"
        );
    }

    const OLD: (&str, &[&str]) = ("old", &["old"]);
    const BOTH: (&str, &[&str]) = ("old", &["old", "new"]);
    const SIGNED: (&str, &[&str]) = ("new", &["old", "new"]);
    const NEW: (&str, &[&str]) = ("new", &["new"]);

    #[test]
    fn another_root_is_trusted_at_once() {
        let all = [holder("web", &["old"], "old")];
        check(OLD, BOTH, &all, ("old", &["new", "old"], &[]));
    }

    #[test]
    fn the_new_root_signs_once_everybody_trusts_it() {
        let mut all = vec![
            holder("web", &["old", "new"], "old"),
            holder("db", &["old"], "old"),
        ];
        check(
            BOTH,
            SIGNED,
            &all,
            ("old", &["new", "old"], &[Waiting::ToSign]),
        );
        all[1] = holder("db", &["old", "new"], "old");
        check(BOTH, SIGNED, &all, ("new", &["new", "old"], &[]));
        // Who has just been told may not have heard it.
        all[1].changed = Some(Instant::now());
        check(
            BOTH,
            SIGNED,
            &all,
            ("old", &["new", "old"], &[Waiting::ToSign]),
        );
    }

    #[test]
    fn the_old_root_goes_once_nothing_is_signed_under_it() {
        let mut all = vec![
            holder("web", &["old", "new"], "new"),
            holder("db", &["old", "new"], "old"),
        ];
        check(
            SIGNED,
            NEW,
            &all,
            ("new", &["new", "old"], &[Waiting::ToDrop]),
        );
        all[1] = holder("db", &["old", "new"], "new");
        check(SIGNED, NEW, &all, ("new", &["new"], &[]));
    }

    #[test]
    fn steps_that_are_made_at_once_are_taken_one_after_the_other() {
        let all = [holder("web", &["old"], "old")];
        check(
            OLD,
            SIGNED,
            &all,
            ("old", &["new", "old"], &[Waiting::ToSign]),
        );
        check(
            BOTH,
            NEW,
            &all,
            ("old", &["new", "old"], &[Waiting::ToSign, Waiting::ToDrop]),
        );
    }

    #[test]
    fn each_step_can_be_taken_back() {
        let all = [holder("web", &["old", "new"], "new")];
        check(SIGNED, BOTH, &all, ("old", &["new", "old"], &[]));
        check(
            BOTH,
            OLD,
            &all,
            ("old", &["new", "old"], &[Waiting::ToDrop]),
        );
        let all = [holder("web", &["old", "new"], "old")];
        check(BOTH, OLD, &all, ("old", &["old"], &[]));
    }

    #[test]
    fn while_nobody_knows_of_other_replicas_a_root_is_added_and_no_other_step_taken() {
        let (old, new) = (anchor("old"), anchor("new"));
        let bundles = [roots(&["old"]), roots(&["old", "new"]), roots(&["new"])];
        let trust = |signer, bundle: usize| Trust {
            signer,
            roots: &bundles[bundle],
        };
        let check = |before, after, expected: &[Waiting]| {
            let step = step(before, after, &[], &Others::Unknown, Instant::now()).unwrap();
            let waits: Vec<_> = step.waits.iter().map(|wait| wait.what).collect();
            assert_eq!(waits, expected);
        };
        check(trust(&old, 0), trust(&old, 1), &[]);
        check(trust(&old, 1), trust(&new, 1), &[Waiting::ToSign]);
        check(trust(&new, 1), trust(&new, 2), &[Waiting::ToDrop]);
    }

    #[test]
    fn roots_that_share_nothing_are_refused_by_name() {
        let (old, new) = (roots(&["old"]), roots(&["new"]));
        let trust = |roots: &'static str, bundle| (anchor(roots), bundle);
        let ((old_signer, old), (new_signer, new)) = (trust("old", old), trust("new", new));
        let [before, after] =
            [(&old_signer, &old), (&new_signer, &new)].map(|(signer, roots)| Trust {
                signer,
                roots: &roots[..],
            });
        let error = step(before, after, &[], &alone(), Instant::now()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("lacks \"old\" (serial 1) and adds \"new\" (serial 1)"),
            "{text}"
        );
    }
}
