// SPDX-License-Identifier: Apache-2.0
//! Reads a proxy's metrics: the OpenMetrics text format, as far as it is used.

use std::collections::BTreeMap;

/// Samples as they were scraped.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Metrics {
    pub fn parse(text: &str) -> Self {
        Self {
            samples: text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(parse_sample)
                .collect(),
        }
    }

    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The sum of a family over all series that carry these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &&Sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|have| have == value))
        };
        self.samples
            .iter()
            .filter(carries)
            .map(|sample| sample.value)
            .sum()
    }
}

fn parse_sample(line: &str) -> Option<Sample> {
    let (name, rest) = match line.find('{') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => {
            let (name, value) = line.split_once(' ')?;
            return Some(Sample {
                name: name.into(),
                labels: BTreeMap::new(),
                value: first_number(value)?,
            });
        }
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some(Sample {
                name: name.into(),
                labels,
                value: first_number(after)?,
            });
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.insert(key.to_owned(), value);
        rest = after;
    }
}

/// Reads up to the closing quote and undoes the escapes.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_their_labels() {
        let text = "# TYPE a counter\na_total{x=\"1\",y=\"q\\\"uote\"} 3\na_total{x=\"1\",y=\"z\"} 4 123\na_total{x=\"2\"} 5\nb 7\n# EOF\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.sum("a_total", &[("x", "1")]), 7.0);
        assert_eq!(metrics.sum("a_total", &[("y", "q\"uote")]), 3.0);
        assert_eq!(metrics.sum("b", &[]), 7.0);
    }
}
