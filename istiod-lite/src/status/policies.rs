// SPDX-License-Identifier: Apache-2.0
//! What the author of a policy with targetRefs is told: whether a waypoint enforces it.

use super::{Condition, Verdict};

pub(super) const WAYPOINT_ACCEPTED: &str = "WaypointAccepted";

/// A reference of a policy, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As the author reads it.
    pub words: String,
    /// What became of it.
    pub found: Found,
}

/// What became of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// This waypoint, or those of this class, enforce it.
    Bound(String),
    /// What it names has no waypoint.
    NoWaypoint,
    /// What it names isn't there, or not ready.
    Missing,
    /// It can mean nothing, for this reason.
    Invalid(String),
}

impl Found {
    fn reason(&self) -> &'static str {
        match self {
            Self::Bound(_) => "Accepted",
            Self::NoWaypoint => "AncestorNotBound",
            Self::Missing => "TargetNotFound",
            Self::Invalid(_) => "Invalid",
        }
    }

    fn message(&self, words: &str) -> String {
        match self {
            Self::Bound(to) => format!("bound to {to}"),
            Self::NoWaypoint => format!("{words} is not bound to a waypoint"),
            Self::Missing => format!("{words} was not found, or has no address yet"),
            Self::Invalid(reason) => format!("{words} {reason}"),
        }
    }
}

/// Whether waypoints enforce a policy. `stricter` is said beside it where they do so more strictly than it is written;
/// `unasked` is why they can't ask whom it names, and deny instead.
pub fn waypoint_accepted(
    targets: &[Target],
    stricter: Option<&str>,
    unasked: Option<&str>,
) -> Option<Condition> {
    let is_bound = |target: &&Target| matches!(target.found, Found::Bound(_));
    let unbound: Vec<&str> = targets
        .iter()
        .filter(|target| !is_bound(target))
        .map(|target| target.words.as_str())
        .collect();
    let (reason, message) = match targets {
        [] => return None,
        [one] => (one.found.reason(), one.found.message(&one.words)),
        _ if unbound.is_empty() => ("Accepted", String::new()),
        several if unbound.len() == several.len() => {
            ("Invalid", format!("no waypoint for {}", unbound.join(", ")))
        }
        _ => (
            "PartiallyInvalid",
            format!("no waypoint for {}", unbound.join(", ")),
        ),
    };
    let bound = targets.iter().find(is_bound);
    let unasked = unasked.filter(|_| bound.is_some());
    let (verdict, reason) = match bound {
        Some(_) if unasked.is_some() => (Verdict::False, "Invalid"),
        Some(_) => (Verdict::True, reason),
        None => (Verdict::False, reason),
    };
    let said = [
        Some(message.as_str()).filter(|text| !text.is_empty()),
        unasked,
        stricter,
    ];
    let said: Vec<&str> = said.into_iter().flatten().collect();
    Some(Condition {
        kind: WAYPOINT_ACCEPTED,
        verdict,
        reason,
        message: said.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reference_keeps_its_own_reason_and_several_are_summed_up() {
        let target = |words: &str, found: &Found| Target {
            words: words.into(),
            found: found.clone(),
        };
        let (bound, lost) = (Found::Bound("shop/wp".into()), Found::Missing);
        let invalid = Found::Invalid("names nothing".into());
        for (founds, verdict, reason, message) in [
            (&[&bound][..], Verdict::True, "Accepted", "bound to shop/wp"),
            (
                &[&lost],
                Verdict::False,
                "TargetNotFound",
                "t0 was not found, or has no address yet",
            ),
            (
                &[&Found::NoWaypoint],
                Verdict::False,
                "AncestorNotBound",
                "t0 is not bound to a waypoint",
            ),
            (&[&invalid], Verdict::False, "Invalid", "t0 names nothing"),
            (&[&bound, &bound], Verdict::True, "Accepted", ""),
            (
                &[&bound, &lost],
                Verdict::True,
                "PartiallyInvalid",
                "no waypoint for t1",
            ),
            (
                &[&lost, &invalid],
                Verdict::False,
                "Invalid",
                "no waypoint for t0, t1",
            ),
        ] {
            let targets: Vec<Target> = founds
                .iter()
                .enumerate()
                .map(|(n, found)| target(&format!("t{n}"), found))
                .collect();
            let said = waypoint_accepted(&targets, None, None).expect("said");
            assert_eq!(
                (said.verdict, said.reason, &*said.message),
                (verdict, reason, message)
            );
        }
        assert_eq!(waypoint_accepted(&[], None, Some("x")), None);
        let stricter = waypoint_accepted(&[target("t", &bound)], Some("less is allowed"), None);
        let message = stricter.map(|said| said.message);
        assert_eq!(
            message.as_deref(),
            Some("bound to shop/wp; less is allowed")
        );
        for (found, reason, is_said) in
            [(&bound, "Invalid", true), (&lost, "TargetNotFound", false)]
        {
            let targets = [target("t", found)];
            let said = waypoint_accepted(&targets, None, Some("nobody to ask")).expect("said");
            assert_eq!((said.verdict, said.reason), (Verdict::False, reason));
            assert_eq!(said.message.ends_with("; nobody to ask"), is_said);
        }
    }
}
