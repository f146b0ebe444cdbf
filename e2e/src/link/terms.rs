// SPDX-License-Identifier: Apache-2.0
//! What a link does to packets, as a person writes it: `delay=20ms,jitter=5ms,loss=1%,reorder=2%,rate=50mbit,mtu=1400`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How a link treats each packet of each direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// How long a packet travels.
    pub delay: Duration,
    /// At most so much more, by chance, without overtaking.
    pub jitter: Duration,
    /// The share of packets that are lost, of 1.
    pub loss: f64,
    /// The share of packets that are held back until later ones have passed.
    pub reorder: f64,
    /// Bits per second; what does not fit into [`QUEUE`] of waiting is lost.
    pub rate: Option<u64>,
    /// Bytes of the longest packet.
    pub mtu: u32,
    /// Chance, made repeatable.
    pub seed: u64,
}

/// How long a packet may wait for a slow link.
pub(super) const QUEUE: Duration = Duration::from_millis(200);

impl Default for Terms {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            rate: None,
            mtu: 1500,
            seed: 1,
        }
    }
}

impl FromStr for Terms {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut terms = Self::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}`: write NAME=VALUE"))?;
            let wrong = |what: &str| format!("{name}: `{value}` is {what}");
            match name {
                "delay" => terms.delay = time(value).ok_or_else(|| wrong("no time, as 20ms"))?,
                "jitter" => terms.jitter = time(value).ok_or_else(|| wrong("no time, as 5ms"))?,
                "loss" => terms.loss = share(value).ok_or_else(|| wrong("no share, as 1%"))?,
                "reorder" => {
                    terms.reorder = share(value).ok_or_else(|| wrong("no share, as 1%"))?
                }
                "rate" => {
                    terms.rate = Some(rate(value).ok_or_else(|| wrong("no rate, as 50mbit"))?);
                }
                "mtu" => {
                    // Less than this no IPv6 link may have (RFC 8200 section 5).
                    let mtu = value.parse().ok().filter(|mtu| (1280..=9000).contains(mtu));
                    terms.mtu = mtu.ok_or_else(|| wrong("not between 1280 and 9000"))?;
                }
                "seed" => terms.seed = value.parse().map_err(|_| wrong("no number"))?,
                other => {
                    return Err(format!(
                        "`{other}` is no property of a link; there are: delay, jitter, loss, reorder, rate, mtu, seed"
                    ));
                }
            }
        }
        Ok(terms)
    }
}

fn time(text: &str) -> Option<Duration> {
    let (number, scale) = match text.strip_suffix("us") {
        Some(number) => (number, 1e-6),
        None => match text.strip_suffix("ms") {
            Some(number) => (number, 1e-3),
            None => (text.strip_suffix('s')?, 1.0),
        },
    };
    let seconds = number.parse::<f64>().ok()? * scale;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| *time <= Duration::from_secs(10))
}

fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

fn rate(text: &str) -> Option<u64> {
    let (number, scale) = match text.strip_suffix("gbit") {
        Some(number) => (number, 1_000_000_000),
        None => match text.strip_suffix("mbit") {
            Some(number) => (number, 1_000_000),
            None => (text.strip_suffix("kbit")?, 1_000),
        },
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(scale))
        .filter(|rate| *rate > 0)
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "delay={}us,jitter={}us,loss={}%,reorder={}%,mtu={},seed={}",
            self.delay.as_micros(),
            self.jitter.as_micros(),
            self.loss * 100.0,
            self.reorder * 100.0,
            self.mtu,
            self.seed
        )?;
        match self.rate {
            Some(rate) => write!(f, ",rate={}kbit", rate / 1000),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_people_write_them() {
        let terms: Terms =
            "delay=20ms,jitter=500us, loss=1%,reorder=0.5%,rate=50mbit,mtu=1400,seed=7"
                .parse()
                .unwrap();
        let expected = Terms {
            delay: Duration::from_millis(20),
            jitter: Duration::from_micros(500),
            loss: 0.01,
            reorder: 0.005,
            rate: Some(50_000_000),
            mtu: 1400,
            seed: 7,
        };
        assert_eq!(terms, expected);
        assert_eq!(terms.to_string().parse::<Terms>().unwrap(), expected);
        assert_eq!("".parse::<Terms>().unwrap(), Terms::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("delay", "NAME=VALUE"),
            ("delay=20", "delay"),
            ("delay=-1ms", "delay"),
            ("loss=0.1", "1%"),
            ("loss=101%", "loss"),
            ("rate=fast", "rate"),
            ("rate=0mbit", "rate"),
            ("mtu=100", "1280"),
            ("colour=red", "there are"),
        ] {
            let error = text.parse::<Terms>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
