// SPDX-License-Identifier: Apache-2.0
//! TLS 1.3 records (RFC 8446 §5), sealed and opened where they lie.
//!
//! ```text
//!   ┌ header 5 ┬ content ≤ 16384 ┬ type 1 ┬ tag 16 ┐
//! ```
//!
//! A sealer or opener owns its key and its sequence number, so that no nonce is used twice. AWS-LC's record keys, the
//! form that its FIPS module approves, refuse a nonce that does not grow as well.

use aws_lc_rs::aead::{
    Aad, NONCE_LEN, Nonce, TlsProtocolId, TlsRecordOpeningKey, TlsRecordSealingKey,
};

use super::secrets::{IV, TrafficSecret};

/// Bytes before the content.
pub(super) const HEADER: usize = 5;
/// Bytes behind the content: the real type and the tag.
pub(super) const TRAILER: usize = 1 + TAG;
const TAG: usize = 16;
/// The most content that one record carries.
pub(super) const CONTENT: usize = 16 * 1024;
/// What lies between the contents of two full records.
pub(super) const GAP: usize = TRAILER + HEADER;
/// The longest record that may be received, header included (RFC 8446 §5.2).
pub(super) const LONGEST: usize = HEADER + CONTENT + 256;

const VERSION: [u8; 2] = [3, 3];

/// What a record carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentType {
    Alert = 21,
    Handshake = 22,
    ApplicationData = 23,
}

/// Why a record was refused; each has its alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("a record that is not authentic")]
    BadRecordMac,
    #[error("a record longer than TLS permits")]
    RecordOverflow,
    #[error("an unexpected TLS message: {0}")]
    UnexpectedMessage(&'static str),
    #[error("a TLS message that can't be read: {0}")]
    DecodeError(&'static str),
    #[error("an illegal parameter in a TLS message: {0}")]
    IllegalParameter(&'static str),
    #[error("the peer reports TLS alert {0}")]
    PeerAlert(u8),
}

impl RecordError {
    /// The alert to answer with (RFC 8446 §6); none to an alert.
    pub(super) fn alert(self) -> Option<u8> {
        match self {
            Self::UnexpectedMessage(_) => Some(10),
            Self::BadRecordMac => Some(20),
            Self::RecordOverflow => Some(22),
            Self::IllegalParameter(_) => Some(47),
            Self::DecodeError(_) => Some(50),
            Self::PeerAlert(_) => None,
        }
    }
}

/// Static part of the nonces and how many records one key has seen.
struct Counter {
    iv: [u8; IV],
    sequence: u64,
}

impl Counter {
    fn new(iv: [u8; IV]) -> Self {
        Self { iv, sequence: 0 }
    }

    /// RFC 8446 §5.3. Each call gives another nonce.
    fn next(&mut self) -> Nonce {
        let mut nonce: [u8; NONCE_LEN] = self.iv;
        for (byte, count) in nonce[IV - 8..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= count;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The sending direction of one connection.
pub(super) struct Sealer {
    secret: TrafficSecret,
    key: TlsRecordSealingKey,
    counter: Counter,
}

impl Sealer {
    pub(super) fn new(secret: TrafficSecret) -> Self {
        let (key, iv) = secret.key_and_iv();
        let key = TlsRecordSealingKey::new(secret.suite().aead(), TlsProtocolId::TLS13, &key)
            .expect("broken invariant: the key was derived for its cipher");
        Self {
            secret,
            key,
            counter: Counter::new(iv),
        }
    }

    /// Records sealed under the present key.
    pub(super) fn sealed(&self) -> u64 {
        self.counter.sequence
    }

    /// Seals `record`, which holds header, content, type and tag; all but the content is written here.
    pub(super) fn seal(&mut self, record: &mut [u8], kind: ContentType) {
        let body = record.len() - HEADER;
        debug_assert!((TRAILER..=CONTENT + TRAILER).contains(&body));
        let (header, body_and_tag) = record.split_at_mut(HEADER);
        header[0] = ContentType::ApplicationData as u8;
        header[1..3].copy_from_slice(&VERSION);
        header[3..].copy_from_slice(&(body as u16).to_be_bytes());
        let (inner, tag_place) = body_and_tag.split_at_mut(body - TAG);
        if let Some(last) = inner.last_mut() {
            *last = kind as u8;
        }
        let tag = self
            .key
            .seal_in_place_separate_tag(self.counter.next(), Aad::from(&*header), inner)
            .expect("broken invariant: a record is never too long to be sealed");
        tag_place.copy_from_slice(tag.as_ref());
    }

    /// Goes on with the next generation of keys.
    pub(super) fn update(&mut self) {
        *self = Self::new(self.secret.next());
    }
}

/// The receiving direction of one connection.
pub(super) struct Opener {
    secret: TrafficSecret,
    key: TlsRecordOpeningKey,
    counter: Counter,
}

impl Opener {
    pub(super) fn new(secret: TrafficSecret) -> Self {
        let (key, iv) = secret.key_and_iv();
        let key = TlsRecordOpeningKey::new(secret.suite().aead(), TlsProtocolId::TLS13, &key)
            .expect("broken invariant: the key was derived for its cipher");
        Self {
            secret,
            key,
            counter: Counter::new(iv),
        }
    }

    /// Opens one whole record in place; the content is at its front behind the header.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<(ContentType, usize), RecordError> {
        let (header, body) = record.split_at_mut(HEADER);
        if body.len() < TRAILER {
            return Err(RecordError::BadRecordMac);
        }
        let inner = self
            .key
            .open_in_place(self.counter.next(), Aad::from(&*header), body)
            .map_err(|_| RecordError::BadRecordMac)?;
        // Padding is zeros behind the type (RFC 8446 §5.4).
        let last = inner
            .iter()
            .rposition(|byte| *byte != 0)
            .ok_or(RecordError::UnexpectedMessage("a record without type"))?;
        if inner.len() > CONTENT + 1 {
            return Err(RecordError::RecordOverflow);
        }
        let kind = match inner[last] {
            21 => ContentType::Alert,
            22 => ContentType::Handshake,
            23 => ContentType::ApplicationData,
            _ => return Err(RecordError::UnexpectedMessage("a record of unknown type")),
        };
        Ok((kind, last))
    }

    /// Goes on with the next generation of keys.
    pub(super) fn update(&mut self) {
        *self = Self::new(self.secret.next());
    }
}

/// The length of the record that starts here, header included; `None` if the header is not complete.
pub(super) fn length(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    if header[0] != ContentType::ApplicationData as u8 {
        return Err(RecordError::UnexpectedMessage("a record in clear"));
    }
    let length = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length > LONGEST {
        return Err(RecordError::RecordOverflow);
    }
    Ok(Some(length))
}

#[cfg(test)]
mod tests {
    use super::super::secrets::Suite;
    use super::*;

    fn pair() -> (Sealer, Opener) {
        let secret = || TrafficSecret::new(Suite::Aes256GcmSha384, &[7; 48]).unwrap();
        (Sealer::new(secret()), Opener::new(secret()))
    }

    fn record(content: &[u8]) -> Vec<u8> {
        let mut record = vec![0; HEADER];
        record.extend_from_slice(content);
        record.resize(record.len() + TRAILER, 0);
        record
    }

    #[test]
    fn what_is_sealed_opens_and_nothing_else_does() {
        let (mut sealer, mut opener) = pair();
        for content in [&b""[..], b"hello", &[9; CONTENT]] {
            let mut bytes = record(content);
            sealer.seal(&mut bytes, ContentType::ApplicationData);
            assert_eq!(length(&bytes), Ok(Some(bytes.len())));
            let (kind, end) = opener.open(&mut bytes).unwrap();
            assert_eq!(kind, ContentType::ApplicationData);
            assert_eq!(&bytes[HEADER..HEADER + end], content);
        }
        let mut bytes = record(b"forged");
        sealer.seal(&mut bytes, ContentType::ApplicationData);
        bytes[HEADER] ^= 1;
        assert_eq!(opener.open(&mut bytes), Err(RecordError::BadRecordMac));
    }

    #[test]
    fn a_record_out_of_order_does_not_open() {
        let (mut sealer, mut opener) = pair();
        let (mut first, mut second) = (record(b"1"), record(b"2"));
        sealer.seal(&mut first, ContentType::ApplicationData);
        sealer.seal(&mut second, ContentType::ApplicationData);
        assert_eq!(opener.open(&mut second), Err(RecordError::BadRecordMac));
    }

    #[test]
    fn both_go_on_after_a_key_update() {
        let (mut sealer, mut opener) = pair();
        sealer.update();
        let mut bytes = record(b"new");
        sealer.seal(&mut bytes, ContentType::Alert);
        let mut copy = bytes.clone();
        assert_eq!(opener.open(&mut copy), Err(RecordError::BadRecordMac));
        opener.update();
        assert_eq!(opener.open(&mut bytes), Ok((ContentType::Alert, 3)));
        assert_eq!(sealer.sealed(), 1);
    }

    #[test]
    fn padding_is_taken_off_and_a_record_of_padding_is_refused() {
        let (mut sealer, mut opener) = pair();
        let mut padded = record(b"ab\x17\0\0");
        // The type byte that `seal` writes is the last one: here it is padding as well.
        sealer.seal_raw(&mut padded, 0);
        assert_eq!(
            opener.open(&mut padded),
            Ok((ContentType::ApplicationData, 2))
        );
        let mut empty = record(b"\0\0\0");
        sealer.seal_raw(&mut empty, 0);
        assert!(matches!(
            opener.open(&mut empty),
            Err(RecordError::UnexpectedMessage(_))
        ));
        let mut odd = record(b"x");
        sealer.seal_raw(&mut odd, 20);
        assert!(matches!(
            opener.open(&mut odd),
            Err(RecordError::UnexpectedMessage(_))
        ));
    }

    #[test]
    fn lengths_are_bounded_and_clear_records_refused() {
        assert_eq!(length(&[23, 3, 3]), Ok(None));
        assert_eq!(length(&[23, 3, 3, 0x41, 0]), Ok(Some(LONGEST)));
        assert_eq!(
            length(&[23, 3, 3, 0x41, 1]),
            Err(RecordError::RecordOverflow)
        );
        for clear in [20, 21, 22, 0] {
            assert!(length(&[clear, 3, 3, 0, 9]).is_err(), "{clear}");
        }
    }

    impl Sealer {
        /// Seals with any byte in the type's place.
        fn seal_raw(&mut self, record: &mut [u8], kind: u8) {
            let body = record.len() - HEADER;
            record[..HEADER].copy_from_slice(&[23, 3, 3, (body >> 8) as u8, body as u8]);
            let (header, rest) = record.split_at_mut(HEADER);
            let (inner, tag_place) = rest.split_at_mut(body - TAG);
            *inner.last_mut().unwrap() = kind;
            let tag = self
                .key
                .seal_in_place_separate_tag(self.counter.next(), Aad::from(&*header), inner)
                .unwrap();
            tag_place.copy_from_slice(tag.as_ref());
        }
    }
}
