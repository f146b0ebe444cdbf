// SPDX-License-Identifier: Apache-2.0
//! How metrics are told otherwise than by default: some are left out, some lose tags, some tags say something else.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderName;
use proto::waypoint as wire;

use super::{Expression, Told};

/// Bytes of a tag's value.
const LONGEST: usize = 256;

/// What is changed, in order: of two that say the same of a metric the later counts.
#[derive(Debug)]
pub struct Changes(Box<[Change]>);

#[derive(Debug)]
struct Change {
    /// Empty: of all metrics.
    metric: String,
    disabled: Option<bool>,
    removed: Vec<String>,
    tags: Vec<(String, Expression)>,
}

/// Changes, and what the tags say of one request.
#[derive(Debug, Clone)]
pub struct Changed {
    changes: Arc<Changes>,
    /// Of all changes' tags, one behind the other.
    values: Box<[Box<str>]>,
}

impl PartialEq for Changed {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.changes, &other.changes) && self.values == other.values
    }
}

impl Eq for Changed {}

impl Changes {
    /// None where nothing is changed.
    pub(super) fn compile(
        overrides: &[wire::MetricOverride],
        wanted: &mut [Vec<HeaderName>; 2],
        problems: &mut Vec<String>,
    ) -> Option<Self> {
        let change = |one: &wire::MetricOverride| {
            let tags = one.tags.iter().filter_map(|(tag, value)| {
                let value = super::told(Expression::compile(value), tag, problems)?;
                value.headers(wanted);
                Some((tag.clone(), value))
            });
            Change {
                tags: tags.collect(),
                metric: one.metric.clone(),
                disabled: one.disabled,
                removed: one.removed_tags.clone(),
            }
        };
        let changes: Box<[Change]> = overrides.iter().map(change).collect();
        (!changes.is_empty()).then_some(Self(changes))
    }

    /// Uses the labels that a metric has after all; nothing where it is left out.
    pub fn apply<T>(
        changed: Option<&Changed>,
        metric: &str,
        labels: &[(&str, &str)],
        use_them: impl FnOnce(&[(&str, &str)]) -> T,
    ) -> Option<T> {
        let Some(Changed { changes, values }) = changed else {
            return Some(use_them(labels));
        };
        let mut labels: Vec<(&str, &str)> = labels.to_vec();
        let mut is_off = false;
        let mut values = values.iter();
        for change in &changes.0 {
            let concerns = change.metric.is_empty() || change.metric == metric;
            // They are there for each tag, whatever metric it is of.
            let tags = change.tags.iter().zip(values.by_ref());
            let tags: Vec<_> = tags.map(|((tag, _), value)| (&**tag, &**value)).collect();
            if !concerns {
                continue;
            }
            is_off = change.disabled.unwrap_or(is_off);
            labels.retain(|(name, _)| !change.removed.iter().any(|removed| removed == name));
            for (tag, value) in tags {
                match labels.iter_mut().find(|(name, _)| *name == tag) {
                    Some(label) => label.1 = value,
                    None => labels.push((tag, value)),
                }
            }
        }
        (!is_off).then(|| use_them(&labels))
    }
}

impl Changed {
    /// What is changed of the metrics of one request or connection.
    pub fn of(changes: &Arc<Changes>, told: &Told<'_>) -> Self {
        let tags = changes.0.iter().flat_map(|change| &change.tags);
        let values = tags.map(|(_, value)| {
            // As Istio has it where there is nothing to say.
            let text = value.text(told).unwrap_or(Cow::Borrowed("unknown"));
            let mut end = text.len().min(LONGEST);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text[..end].into()
        });
        Self {
            values: values.collect(),
            changes: Arc::clone(changes),
        }
    }
}
