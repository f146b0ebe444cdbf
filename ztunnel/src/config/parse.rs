// SPDX-License-Identifier: Apache-2.0
//! Reads variables one by one, remembers what was used and every mistake, and never stops at the first.
//!
//! A value that can't be read yields its default, so that reading goes on; the mistake makes the whole fail at the end.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::Mistake;
use super::variables::default_of;

pub(super) struct Reader<'a> {
    variables: &'a BTreeMap<String, String>,
    effective: BTreeMap<String, String>,
    mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(variables: &'a BTreeMap<String, String>) -> Self {
        Self {
            variables,
            effective: BTreeMap::new(),
            mistakes: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> (BTreeMap<String, String>, Vec<Mistake>) {
        (self.effective, self.mistakes)
    }

    pub(super) fn mistake(&mut self, variable: &str, reason: &str) {
        self.mistakes.push(Mistake {
            variable: variable.to_owned(),
            reason: reason.to_owned(),
        });
    }

    pub(super) fn effective(&mut self, variable: &str, value: &str) {
        self.effective.insert(variable.to_owned(), value.to_owned());
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let value = self.variables.get(name).cloned();
        if let Some(value) = &value {
            self.effective(name, value);
        }
        value
    }

    pub(super) fn text_or(&mut self, name: &str, default: &str) -> String {
        let value = self
            .variables
            .get(name)
            .map_or(default, String::as_str)
            .to_owned();
        self.effective(name, &value);
        value
    }

    /// As [`Self::text_or`], with the table's default.
    pub(super) fn text_with_default(&mut self, name: &str) -> String {
        self.text_or(name, default_of(name))
    }

    /// A value that must not appear in logs and dumps.
    pub(super) fn secret(&mut self, name: &str) -> Option<String> {
        let value = self.variables.get(name).cloned();
        if value.is_some() {
            self.effective(name, "(set)");
        }
        value
    }

    pub(super) fn with_prefix(&self, prefix: &str) -> Vec<(String, String)> {
        self.variables
            .iter()
            .filter_map(|(name, value)| {
                Some((name.strip_prefix(prefix)?.to_owned(), value.clone()))
            })
            .filter(|(key, _)| !key.is_empty())
            .collect()
    }

    pub(super) fn secrets_with_prefix(&mut self, prefix: &str) -> Vec<(String, String)> {
        let found = self.with_prefix(prefix);
        for (key, _) in &found {
            let name = format!("{prefix}{key}");
            self.effective(&name, "(set)");
            if http::HeaderName::from_bytes(key.as_bytes()).is_err() {
                self.mistake(&name, "what follows the prefix is not a header name");
            }
        }
        found
    }

    pub(super) fn refuse_when(&mut self, name: &str, value: &str, reason: &str) {
        if self.variables.get(name).is_some_and(|given| given == value) {
            self.mistake(name, &format!("is {value}: {reason}"));
        }
    }

    pub(super) fn refuse_when_set(&mut self, name: &str, reason: &str) {
        if self
            .variables
            .get(name)
            .is_some_and(|given| !given.is_empty())
        {
            self.mistake(name, reason);
        }
    }

    pub(super) fn one_of(&mut self, name: &str, allowed: &[&str]) {
        if let Some(given) = self.variables.get(name)
            && !allowed.contains(&given.as_str())
        {
            self.mistake(
                name,
                &format!("{given:?} is not one of {}", allowed.join(", ")),
            );
        }
    }

    /// `yes` for true and `no` for false; the default is the table's.
    pub(super) fn either<T>(&mut self, name: &str, yes: T, no: T) -> T {
        let default = default_of(name) == "true";
        let chosen = self.optional_bool(name).unwrap_or(default);
        self.effective(name, if chosen { "true" } else { "false" });
        if chosen { yes } else { no }
    }

    pub(super) fn optional_bool(&mut self, name: &str) -> Option<bool> {
        self.parsed(name, |value| match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("must be true or false".to_owned()),
        })
    }

    pub(super) fn number<T: FromStr>(&mut self, name: &str) -> T {
        let default = default_of(name).parse();
        let default = default.unwrap_or_else(|_| unreachable!("the default of {name} is a number"));
        let value = self.optional_number(name).unwrap_or(default);
        if !self.variables.contains_key(name) {
            self.effective(name, default_of(name));
        }
        value
    }

    pub(super) fn number_within(&mut self, name: &str, range: RangeInclusive<u32>) -> u32 {
        let value = self.number(name);
        if range.contains(&value) {
            return value;
        }
        self.mistake(
            name,
            &format!(
                "{value} is not within {} and {}",
                range.start(),
                range.end()
            ),
        );
        *range.start()
    }

    pub(super) fn optional_number<T: FromStr>(&mut self, name: &str) -> Option<T> {
        self.parsed(name, |value| {
            value
                .parse()
                .map_err(|_| "must be a whole number in range".to_owned())
        })
    }

    pub(super) fn duration(&mut self, name: &str) -> Duration {
        let default = duration(default_of(name));
        let default =
            default.unwrap_or_else(|_| unreachable!("the default of {name} is a duration"));
        let value = self.optional_duration(name).unwrap_or(default);
        if !self.variables.contains_key(name) {
            self.effective(name, default_of(name));
        }
        value
    }

    pub(super) fn optional_duration(&mut self, name: &str) -> Option<Duration> {
        self.parsed(name, duration)
    }

    pub(super) fn mark(&mut self, name: &str) -> u32 {
        let parse = |value: &str| {
            let number = match value.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => value.parse().ok(),
            };
            number
                .filter(|mark| *mark != 0)
                .ok_or_else(|| "must be a packet mark other than 0".to_owned())
        };
        self.parsed(name, parse)
            .unwrap_or(capture::contract::PACKET_MARK.value)
    }

    pub(super) fn quantity(&mut self, name: &str) -> Option<usize> {
        self.parsed(name, quantity).filter(|cpus| *cpus > 0)
    }

    pub(super) fn threads(&mut self, name: &str, cpus: usize) -> Option<usize> {
        self.parsed(name, |value| threads(value, cpus))
    }

    /// The control plane is reached over TLS only; a bare `host:port` means https.
    pub(super) fn https(&mut self, name: &str, address: &str) -> String {
        let full = if address.contains("://") {
            address.to_owned()
        } else {
            format!("https://{address}")
        };
        let valid = full
            .parse::<http::Uri>()
            .is_ok_and(|uri| uri.scheme_str() == Some("https") && uri.host().is_some());
        if !valid && !address.is_empty() {
            self.mistake(
                name,
                &format!("{address:?} is not an https address such as https://istiod:15012"),
            );
        }
        full
    }

    fn parsed<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let given = self.variables.get(name).filter(|value| !value.is_empty())?;
        match parse(given) {
            Ok(value) => {
                self.effective.insert(name.to_owned(), given.clone());
                Some(value)
            }
            Err(reason) => {
                self.mistake(name, &format!("{given:?} {reason}"));
                None
            }
        }
    }
}

/// `5s`, `24h`, `1h30m`, `500ms`: numbers each with a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "is not a duration such as 500ms, 5s, 10m or 24h".to_owned();
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let milliseconds: u64 = match &rest[..unit] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let part = Duration::from_millis(number.checked_mul(milliseconds).ok_or_else(wrong)?);
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[unit..];
    }
    if text.trim().is_empty() {
        Err(wrong())
    } else {
        Ok(total)
    }
}

/// Kubernetes CPU quantity, rounded up: `2`, `1.5`, `500m`.
pub(super) fn quantity(text: &str) -> Result<usize, String> {
    let (number, scale) = match text.strip_suffix('m') {
        Some(milli) => (milli, 1_000.0),
        None => (text, 1.0),
    };
    let parsed: Option<f64> = number.parse().ok();
    match parsed.map(|number| (number / scale).ceil()) {
        Some(cpus) if (0.0..=65_536.0).contains(&cpus) => Ok(cpus as usize),
        _ => Err("is not a CPU quantity such as 2, 1.5 or 500m".to_owned()),
    }
}

fn threads(text: &str, cpus: usize) -> Result<usize, String> {
    let wrong = || "is neither a number of threads nor a percentage of CPUs such as 50%".to_owned();
    if let Some(percent) = text.strip_suffix('%') {
        let percent: usize = percent.parse().map_err(|_| wrong())?;
        let threads = cpus.saturating_mul(percent).div_ceil(100).max(1);
        return if percent <= 1_000 {
            Ok(threads)
        } else {
            Err(wrong())
        };
    }
    match text.parse().map_err(|_| wrong())? {
        0 => Ok(cpus),
        threads if threads <= 1_024 => Ok(threads),
        _ => Err("is more than 1024 threads".to_owned()),
    }
}
