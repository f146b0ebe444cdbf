// SPDX-License-Identifier: Apache-2.0
//! Reads variables one by one, remembers what was used and every mistake, and never stops at the first.
//!
//! In: a table that states every variable with its default and meaning, and the variables as they are. A value that can't
//! be read yields its default, so that reading goes on; the mistake makes the whole fail at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// One variable of the environment.
pub struct Variable {
    /// Its name; a `*` at the end stands for all that begin so.
    pub name: &'static str,
    /// Empty: no default.
    pub default: &'static str,
    /// For a person.
    pub meaning: &'static str,
}

/// A line of a table.
pub const fn variable(
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable {
        name,
        default,
        meaning,
    }
}

/// What a program prints when asked for help: how it is called, and its table.
pub fn help<'v>(usage: &str, table: impl IntoIterator<Item = &'v Variable>) -> String {
    let mut text = format!("{usage}\n\nEnvironment:\n");
    for variable in table {
        let default = match variable.default {
            "" => String::new(),
            default => format!(" [{default}]"),
        };
        let (name, meaning) = (variable.name, variable.meaning);
        text.push_str(&format!("  {name:<34} {meaning}{default}\n"));
    }
    text
}

/// One variable that can't be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Its name.
    pub variable: String,
    /// What is wrong with it.
    pub reason: String,
}

/// All mistakes at once, so that one restart is enough to repair them.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    /// In the order in which variables were read.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the configuration has {} mistake(s):",
            self.mistakes.len()
        )?;
        for mistake in &self.mistakes {
            write!(f, "\n  {}: {}", mistake.variable, mistake.reason)?;
        }
        Ok(())
    }
}

/// Reads one program's variables.
pub struct Reader<'a> {
    table: &'static [Variable],
    variables: &'a BTreeMap<String, String>,
    effective: BTreeMap<String, String>,
    mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    /// Nothing read yet.
    pub fn new(table: &'static [Variable], variables: &'a BTreeMap<String, String>) -> Self {
        Self {
            table,
            variables,
            effective: BTreeMap::new(),
            mistakes: Vec::new(),
        }
    }

    /// The variables with their values as used, secrets left out.
    ///
    /// # Errors
    /// Lists every mistake that was made.
    pub fn finish(self) -> Result<BTreeMap<String, String>, ConfigError> {
        if self.mistakes.is_empty() {
            Ok(self.effective)
        } else {
            Err(ConfigError {
                mistakes: self.mistakes,
            })
        }
    }

    /// The default that the table states; every reader with a default goes through here.
    ///
    /// # Panics
    /// If the variable does not stand in the table, which is a mistake of the program.
    pub fn default_of(&self, name: &str) -> &'static str {
        let found = self.table.iter().find(|variable| variable.name == name);
        found
            .map(|variable| variable.default)
            .unwrap_or_else(|| unreachable!("{name} stands in the table of variables"))
    }

    /// Notes a mistake.
    pub fn mistake(&mut self, variable: &str, reason: &str) {
        self.mistakes.push(Mistake {
            variable: variable.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// Notes a value as used.
    pub fn effective(&mut self, variable: &str, value: &str) {
        self.effective.insert(variable.to_owned(), value.to_owned());
    }

    /// The value as it is; none where it is not set.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let value = self.variables.get(name).cloned();
        if let Some(value) = &value {
            self.effective(name, value);
        }
        value
    }

    /// The value as it is, or else the default given.
    pub fn text_or(&mut self, name: &str, default: &str) -> String {
        let value = self
            .variables
            .get(name)
            .map_or(default, String::as_str)
            .to_owned();
        self.effective(name, &value);
        value
    }

    /// As [`Self::text_or`], with the table's default.
    pub fn text_with_default(&mut self, name: &str) -> String {
        self.text_or(name, self.default_of(name))
    }

    /// A value that must not appear in logs and dumps.
    pub fn secret(&mut self, name: &str) -> Option<String> {
        let value = self.variables.get(name).cloned();
        if value.is_some() {
            self.effective(name, "(set)");
        }
        value
    }

    /// All variables of a prefix, by what follows it.
    pub fn with_prefix(&self, prefix: &str) -> Vec<(String, String)> {
        self.variables
            .iter()
            .filter_map(|(name, value)| {
                Some((name.strip_prefix(prefix)?.to_owned(), value.clone()))
            })
            .filter(|(key, _)| !key.is_empty())
            .collect()
    }

    /// Those of a prefix that are headers not to be shown.
    pub fn secrets_with_prefix(&mut self, prefix: &str) -> Vec<(String, String)> {
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

    /// Makes one value a mistake.
    pub fn refuse_when(&mut self, name: &str, value: &str, reason: &str) {
        if self.variables.get(name).is_some_and(|given| given == value) {
            self.mistake(name, &format!("is {value}: {reason}"));
        }
    }

    /// Makes any value a mistake.
    pub fn refuse_when_set(&mut self, name: &str, reason: &str) {
        if self
            .variables
            .get(name)
            .is_some_and(|given| !given.is_empty())
        {
            self.mistake(name, reason);
        }
    }

    /// Makes every other value a mistake.
    pub fn one_of(&mut self, name: &str, allowed: &[&str]) {
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
    pub fn either<T>(&mut self, name: &str, yes: T, no: T) -> T {
        let default = self.default_of(name) == "true";
        let chosen = self.optional_bool(name).unwrap_or(default);
        self.effective(name, if chosen { "true" } else { "false" });
        if chosen { yes } else { no }
    }

    /// `true` or `false`.
    pub fn optional_bool(&mut self, name: &str) -> Option<bool> {
        self.parsed(name, |value| match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("must be true or false".to_owned()),
        })
    }

    /// A whole number; the default is the table's.
    pub fn number<T: FromStr>(&mut self, name: &str) -> T {
        let default = self.default_of(name).parse();
        let default = default.unwrap_or_else(|_| unreachable!("the default of {name} is a number"));
        let value = self.optional_number(name).unwrap_or(default);
        if !self.variables.contains_key(name) {
            self.effective(name, self.default_of(name));
        }
        value
    }

    /// The same, and none out of range.
    pub fn number_within(&mut self, name: &str, range: RangeInclusive<u32>) -> u32 {
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

    /// A whole number, if there is one.
    pub fn optional_number<T: FromStr>(&mut self, name: &str) -> Option<T> {
        self.parsed(name, |value| {
            value
                .parse()
                .map_err(|_| "must be a whole number in range".to_owned())
        })
    }

    /// A span of time; the default is the table's.
    pub fn duration(&mut self, name: &str) -> Duration {
        let default = duration(self.default_of(name));
        let default =
            default.unwrap_or_else(|_| unreachable!("the default of {name} is a duration"));
        let value = self.optional_duration(name).unwrap_or(default);
        if !self.variables.contains_key(name) {
            self.effective(name, self.default_of(name));
        }
        value
    }

    /// A span of time, if there is one.
    pub fn optional_duration(&mut self, name: &str) -> Option<Duration> {
        self.parsed(name, duration)
    }

    /// A packet mark; `0x` begins a hexadecimal one.
    pub fn mark(&mut self, name: &str, default: u32) -> u32 {
        let parse = |value: &str| {
            let number = match value.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => value.parse().ok(),
            };
            number
                .filter(|mark| *mark != 0)
                .ok_or_else(|| "must be a packet mark other than 0".to_owned())
        };
        self.parsed(name, parse).unwrap_or(default)
    }

    /// A CPU quantity, in whole CPUs.
    pub fn quantity(&mut self, name: &str) -> Option<usize> {
        self.parsed(name, quantity).filter(|cpus| *cpus > 0)
    }

    /// A number of threads, or a percentage of `cpus`.
    pub fn threads(&mut self, name: &str, cpus: usize) -> Option<usize> {
        self.parsed(name, |value| threads(value, cpus))
    }

    /// The control plane is reached over TLS only; a bare `host:port` means https.
    pub fn https(&mut self, name: &str, address: &str) -> String {
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

    /// What a proxy tells of itself: `ISTIO_META_*` as text, `ISTIO_METAJSON_*` as JSON.
    pub fn metadata(&mut self) -> BTreeMap<String, serde_json::Value> {
        let mut metadata = BTreeMap::new();
        for (key, value) in self.with_prefix("ISTIO_META_") {
            metadata.insert(key, serde_json::Value::String(value));
        }
        for (key, value) in self.with_prefix("ISTIO_METAJSON_") {
            match serde_json::from_str(&value) {
                Ok(value) => {
                    metadata.insert(key, value);
                }
                Err(error) => self.mistake(
                    &format!("ISTIO_METAJSON_{key}"),
                    &format!("is not JSON: {error}"),
                ),
            }
        }
        metadata
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
fn duration(text: &str) -> Result<Duration, String> {
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
fn quantity(text: &str) -> Result<usize, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_quantities_are_read_with_their_units() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "5", "s", "5x", "-1s", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(quantity("1.5"), Ok(2));
        assert_eq!(quantity("500m"), Ok(1));
        for wrong in ["", "x", "-1", "NaN", "inf"] {
            assert!(quantity(wrong).is_err(), "{wrong}");
        }
    }
}
