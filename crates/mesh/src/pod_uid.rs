// SPDX-License-Identifier: Apache-2.0
//! Which of all pods that ever had a name a pod is.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// A pod's UID: any text, of which those that occur take 16 bytes. Equal if and only if the texts are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Form);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    /// As an API server makes them: a UUID in lower case.
    Uuid([u8; 16]),
    /// As a kubelet makes them for static pods: 32 hexadecimal digits in lower case.
    Digest([u8; 16]),
    Text(Arc<str>),
}

const UUID_LENGTH: usize = 36;
const DIGEST_LENGTH: usize = 32;
/// Where a UUID has its hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl PodUid {
    /// None where nothing is said.
    pub(crate) fn unless_empty(text: &str) -> Option<Box<Self>> {
        (!text.is_empty()).then(|| Box::new(Self::from(text)))
    }
}

impl From<&str> for PodUid {
    fn from(text: &str) -> Self {
        let form = match text.len() {
            UUID_LENGTH => uuid(text.as_bytes()).map(Form::Uuid),
            DIGEST_LENGTH => bytes(text.bytes()).map(Form::Digest),
            _ => None,
        };
        Self(form.unwrap_or_else(|| Form::Text(text.into())))
    }
}

fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text.iter().enumerate();
    let digits = digits.filter(|(at, _)| !HYPHENS.contains(at));
    let in_place = HYPHENS.iter().all(|at| text[*at] == b'-');
    bytes(digits.map(|(_, digit)| *digit)).filter(|_| in_place)
}

/// The bytes of 32 digits, unless printing those would not give the digits back.
fn bytes(mut digits: impl Iterator<Item = u8>) -> Option<[u8; 16]> {
    let number = digits.try_fold(0_u128, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    });
    number.map(u128::to_be_bytes)
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, breaks): (_, &[usize]) = match &self.0 {
            Form::Uuid(bytes) => (bytes, &[4, 6, 8, 10]),
            Form::Digest(bytes) => (bytes, &[]),
            Form::Text(text) => return f.write_str(text),
        };
        for (at, byte) in bytes.iter().enumerate() {
            let hyphen = if breaks.contains(&at) { "-" } else { "" };
            write!(f, "{hyphen}{byte:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for PodUid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uids_as_clusters_make_them_are_compact() {
        let of = |text| PodUid::from(text).0;
        let uuid = of("0f3a9c1e-7d42-4b8e-9f00-a1b2c3d4e5f6");
        assert!(matches!(uuid, Form::Uuid(bytes) if bytes[..2] == [0x0f, 0x3a]));
        let digest = of("0f3a9c1e7d424b8e9f00a1b2c3d4e5f6");
        assert!(matches!(digest, Form::Digest(bytes) if bytes[15] == 0xf6));
        assert_ne!(uuid, digest);
        for odd in [
            "uid-0",
            "0F3A9C1E-7D42-4B8E-9F00-A1B2C3D4E5F6",
            "0f3a9c1e-7d42-4b8e-9f0-0a1b2c3d4e5f6",
            "0f3a9c1e7d424b8e9f00a1b2c3d4e5fé",
        ] {
            assert!(matches!(of(odd), Form::Text(_)), "{odd}");
        }
        assert!(size_of::<PodUid>() <= 24);
    }

    #[test]
    fn nothing_said_is_no_uid() {
        assert_eq!(PodUid::unless_empty(""), None);
        assert!(PodUid::unless_empty("u").is_some());
    }

    proptest! {
        /// Nearly UUIDs and digests most of all.
        #[test]
        fn a_uid_prints_as_it_was_written(
            text in "[0-9a-fA-F]{8}(-[0-9a-fg]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f-]{30,37}|.{0,40}",
        ) {
            prop_assert_eq!(PodUid::from(&*text).to_string(), text);
        }
    }
}
