// SPDX-License-Identifier: Apache-2.0
//! Hosts as Istio's kinds name them: one, or with a `*` before a dot, all that end so; and who of others sees an object.

use std::borrow::Cow;

use super::Host;
use crate::facts::endpoint::is_host;

/// `*`, or `*.` with a name behind; none where it is neither.
pub(crate) fn pattern(text: &str) -> Option<Host> {
    let text = text.to_ascii_lowercase();
    let suffix = text.strip_prefix("*.");
    (text == "*" || suffix.is_some_and(is_host)).then(|| text.into())
}

/// Under which names a host may be meant, from itself to `*`.
pub(crate) fn names_of(host: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let dots = host.match_indices('.');
    let wild = dots.map(|(at, _)| Cow::Owned(format!("*{}", &host[at..])));
    let own = std::iter::once(Cow::Borrowed(host));
    own.chain(wild).chain(std::iter::once(Cow::Borrowed("*")))
}

/// Whether a name means a host, and how closely: the greater, the closer.
pub(crate) fn closeness(name: &str, host: &str) -> Option<usize> {
    match name.strip_prefix('*') {
        None => (*name == *host).then_some(usize::MAX),
        Some(suffix) => {
            (host.len() > suffix.len() && host.ends_with(suffix)).then_some(suffix.len())
        }
    }
}

/// Whether an object with this `exportTo` is seen in a namespace.
pub(crate) fn is_exported(export_to: &[String], own: &str, namespace: &str) -> bool {
    export_to.is_empty()
        || export_to.iter().any(|to| match to.as_str() {
            "*" => true,
            "." => own == namespace,
            to => to == namespace,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_meant_by_its_name_and_by_those_that_stand_for_more() {
        let names: Vec<_> = names_of("a.shop.com").collect();
        assert_eq!(names, ["a.shop.com", "*.shop.com", "*.com", "*"]);
        let close: Vec<_> = names
            .iter()
            .map(|name| closeness(name, "a.shop.com"))
            .collect();
        assert_eq!(close, [Some(usize::MAX), Some(9), Some(4), Some(0)]);
        for other in ["b.shop.com", "*.a.shop.com", "*.shop.org"] {
            assert_eq!(closeness(other, "a.shop.com"), None, "{other}");
        }
        assert_eq!(closeness("*.shop.com", ".shop.com"), None);
        assert_eq!(pattern("*.Shop.com").as_deref(), Some("*.shop.com"));
        assert_eq!(pattern("*").as_deref(), Some("*"));
        for wrong in ["a", "*a", "*.*", "a.*", "*."] {
            assert_eq!(pattern(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn who_sees_an_object() {
        let seen = |export_to: &[&str], namespace: &str| {
            let export_to: Vec<_> = export_to.iter().map(|to| (*to).to_owned()).collect();
            is_exported(&export_to, "own", namespace)
        };
        assert!(seen(&[], "a") && seen(&["*"], "a") && seen(&["."], "own") && seen(&["a"], "a"));
        assert!(!seen(&["."], "a") && !seen(&["~"], "own") && !seen(&["b"], "a"));
    }
}
