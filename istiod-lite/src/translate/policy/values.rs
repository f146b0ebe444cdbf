// SPDX-License-Identifier: Apache-2.0
//! The values that policies match against.

use std::net::IpAddr;

use proto::security as wire;
use wire::string_match::MatchType;

use crate::translate::octets;

/// Why a value can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Nothing is there.
    Empty,
    /// It is no address and no block of addresses.
    IpBlock,
    /// It is no port number.
    Port,
    /// It is not `account` or `namespace/account`.
    ServiceAccount,
}

impl Unreadable {
    pub(super) fn describe(self, text: &str) -> String {
        match self {
            Self::Empty => "is empty".to_owned(),
            Self::IpBlock => format!("{text:?} is neither an IP address nor a CIDR block"),
            Self::Port => format!("{text:?} is no port number"),
            Self::ServiceAccount => {
                format!("{text:?} is neither a service account nor namespace/account")
            }
        }
    }
}

/// `*` any, `*x` a suffix, `x*` a prefix, else the text itself. The leading star
/// is looked for first: `*x*` is the suffix `x*`.
pub(super) fn text(text: &str) -> Result<wire::StringMatch, Unreadable> {
    let match_type = if text.is_empty() {
        return Err(Unreadable::Empty);
    } else if text == "*" {
        MatchType::Presence(())
    } else if let Some(suffix) = text.strip_prefix('*') {
        MatchType::Suffix(suffix.to_owned())
    } else if let Some(prefix) = text.strip_suffix('*') {
        MatchType::Prefix(prefix.to_owned())
    } else {
        MatchType::Exact(text.to_owned())
    };
    Ok(wire::StringMatch {
        match_type: Some(match_type),
    })
}

/// An address, or a block of them. Host bits are kept as written.
pub(super) fn ip_block(text: &str) -> Result<wire::Address, Unreadable> {
    let (address, length) = text
        .split_once('/')
        .map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().map_err(|_| Unreadable::IpBlock)?;
    let longest: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => longest,
        Some(digits) if !digits.starts_with('+') => digits
            .parse::<u8>()
            .ok()
            .filter(|length| *length <= longest)
            .ok_or(Unreadable::IpBlock)?,
        Some(_) => return Err(Unreadable::IpBlock),
    };
    Ok(wire::Address {
        address: octets(address),
        length: length.into(),
    })
}

/// A port.
pub(super) fn port(text: &str) -> Result<u32, Unreadable> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u16>().ok().filter(|_| digits);
    number.map(u32::from).ok_or(Unreadable::Port)
}

/// A service account, of the policy's own namespace unless it names another.
pub(super) fn service_account(
    text: &str,
    own_namespace: &str,
) -> Result<wire::ServiceAccountMatch, Unreadable> {
    let (namespace, account) = text.split_once('/').unwrap_or((own_namespace, text));
    let plain = |part: &str| !part.is_empty() && !part.contains(['/', '*']);
    if !plain(namespace) || !plain(account) {
        return Err(Unreadable::ServiceAccount);
    }
    Ok(wire::ServiceAccountMatch {
        namespace: namespace.to_owned(),
        service_account: account.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_addresses_are_read_as_written() {
        let block = |text| ip_block(text).map(|a| (a.address.to_vec(), a.length));
        assert_eq!(block("10.0.0.1"), Ok((vec![10, 0, 0, 1], 32)));
        assert_eq!(block("10.1.2.3/8"), Ok((vec![10, 1, 2, 3], 8)));
        assert_eq!(block("::1").map(|(a, l)| (a.len(), l)), Ok((16, 128)));
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0",
            "all",
            "::/129",
            "1.2.3.4/8/9",
        ] {
            assert_eq!(block(bad), Err(Unreadable::IpBlock), "{bad:?}");
        }
    }

    #[test]
    fn a_leading_star_is_looked_for_first() {
        let kind = |t: &str| text(t).map(|m| m.match_type.expect("set"));
        assert!(matches!(kind("*"), Ok(MatchType::Presence(_))));
        assert_eq!(kind("*x*"), Ok(MatchType::Suffix("x*".into())));
        assert_eq!(kind("x*"), Ok(MatchType::Prefix("x".into())));
        assert_eq!(kind("x"), Ok(MatchType::Exact("x".into())));
        assert_eq!(kind(""), Err(Unreadable::Empty));
    }

    #[test]
    fn ports_and_accounts_that_are_none_are_refused() {
        assert_eq!(port("80"), Ok(80));
        for bad in ["", "65536", "-1", "+80", "http", "8 0"] {
            assert_eq!(port(bad), Err(Unreadable::Port), "{bad:?}");
        }
        let account = |text| service_account(text, "own").map(|a| (a.namespace, a.service_account));
        assert_eq!(account("web"), Ok(("own".into(), "web".into())));
        assert_eq!(account("shop/web"), Ok(("shop".into(), "web".into())));
        for bad in ["", "/web", "shop/", "a/b/c", "*", "shop/*"] {
            assert_eq!(account(bad), Err(Unreadable::ServiceAccount), "{bad:?}");
        }
    }
}
