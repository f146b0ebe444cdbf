// SPDX-License-Identifier: Apache-2.0
//! What a rule makes of requests on purpose: delays and errors, so that their clients can be tried, and answers that need
//! no backend.
//!
//! In: [`proto::waypoint::Fault`], [`proto::waypoint::DirectResponse`]; randomness. Out: how long a request waits, and
//! whether and how it is answered here.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use proto::waypoint as wire;
use proto::waypoint::fault::abort::Status;
use rand::Rng;

use crate::split::Fraction;

/// As long as Istio takes one of: 1 MiB.
const LONGEST_BODY: usize = 1 << 20;
/// As long as anybody waits.
const LONGEST_DELAY: Duration = Duration::from_secs(3600);

/// Delays and errors, drawn anew for each request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fault {
    delay: Option<(Fraction, Duration)>,
    abort: Option<(Fraction, Abort)>,
}

/// An error that nobody made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// What a client that speaks no gRPC is answered.
    pub status: StatusCode,
    /// What one that does is told, where the rule says so itself.
    pub grpc: Option<u8>,
}

/// An answer that needs no backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its body, maybe empty.
    pub body: Bytes,
}

impl Fault {
    /// # Errors
    /// Names what can't be honoured.
    pub(super) fn compile(fault: Option<&wire::Fault>) -> Result<Self, String> {
        let Some(fault) = fault else {
            return Ok(Self::default());
        };
        let delay = fault.delay.as_ref().map(|delay| {
            let time = delay.duration.map(Duration::try_from);
            match time {
                Some(Ok(time)) if time <= LONGEST_DELAY => Ok((share(delay.share), time)),
                _ => Err("fault.delay: not a time of an hour at most".to_owned()),
            }
        });
        let abort = fault.abort.as_ref().map(|abort| {
            let how = match abort.status {
                Some(Status::Http(code)) => Abort {
                    status: status(code).ok_or_else(|| format!("fault.abort: no status {code}"))?,
                    grpc: None,
                },
                Some(Status::Grpc(code)) => {
                    let code = u8::try_from(code).ok().filter(|code| *code <= 16);
                    let code = code.ok_or("fault.abort: no status of gRPC")?;
                    Abort {
                        status: http_of(code),
                        grpc: Some(code),
                    }
                }
                None => return Err("fault.abort: names no status".to_owned()),
            };
            Ok((share(abort.share), how))
        });
        Ok(Self {
            delay: delay.transpose()?,
            abort: abort.transpose()?,
        })
    }

    /// How long this request waits.
    pub(super) fn delay(&self, rng: &mut impl Rng) -> Option<Duration> {
        let (share, time) = self.delay.as_ref()?;
        share.draw(rng).then_some(*time)
    }

    /// The error that this request is answered with.
    pub(super) fn abort(&self, rng: &mut impl Rng) -> Option<Abort> {
        let (share, abort) = self.abort.as_ref()?;
        share.draw(rng).then_some(*abort)
    }
}

impl DirectResponse {
    /// # Errors
    /// Names what can't be honoured.
    pub(super) fn compile(response: &wire::DirectResponse) -> Result<Self, String> {
        let code = response.status;
        if response.body.len() > LONGEST_BODY {
            let length = response.body.len();
            return Err(format!(
                "direct_response: {length} bytes, more than {LONGEST_BODY}"
            ));
        }
        Ok(Self {
            status: status(code).ok_or_else(|| format!("direct_response: no status {code}"))?,
            body: Bytes::from(response.body.clone()),
        })
    }
}

fn share(share: Option<wire::Share>) -> Fraction {
    let share = share.unwrap_or_default();
    Fraction {
        numerator: share.numerator,
        denominator: share.denominator,
    }
}

fn status(code: u32) -> Option<StatusCode> {
    let code = u16::try_from(code)
        .ok()
        .filter(|code| (200..600).contains(code))?;
    StatusCode::from_u16(code).ok()
}

/// As gRPC's own table has it, read backwards.
fn http_of(grpc: u8) -> StatusCode {
    match grpc {
        0 => StatusCode::OK,
        3 | 9 | 11 => StatusCode::BAD_REQUEST,
        4 => StatusCode::GATEWAY_TIMEOUT,
        5 => StatusCode::NOT_FOUND,
        6 | 10 => StatusCode::CONFLICT,
        7 => StatusCode::FORBIDDEN,
        8 => StatusCode::TOO_MANY_REQUESTS,
        12 => StatusCode::NOT_IMPLEMENTED,
        14 => StatusCode::SERVICE_UNAVAILABLE,
        16 => StatusCode::UNAUTHORIZED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn half() -> Option<wire::Share> {
        Some(wire::Share {
            numerator: 1,
            denominator: 2,
        })
    }

    fn abort(status: Status) -> Result<Fault, String> {
        Fault::compile(Some(&wire::Fault {
            delay: None,
            abort: Some(wire::fault::Abort {
                share: half(),
                status: Some(status),
            }),
        }))
    }

    #[test]
    fn a_share_of_requests_waits_and_a_share_is_answered_with_an_error() {
        let wire = wire::Fault {
            delay: Some(wire::fault::Delay {
                share: half(),
                duration: Some(prost_types::Duration {
                    seconds: 0,
                    nanos: 5_000_000,
                }),
            }),
            abort: Some(wire::fault::Abort {
                share: half(),
                status: Some(Status::Grpc(14)),
            }),
        };
        let fault = Fault::compile(Some(&wire)).unwrap();
        let mut rng = StdRng::seed_from_u64(1);
        let drawn: Vec<_> = (0..1000)
            .map(|_| (fault.delay(&mut rng), fault.abort(&mut rng)))
            .collect();
        let waiting = drawn.iter().filter(|(delay, _)| delay.is_some()).count();
        let failing = drawn.iter().filter(|(_, abort)| abort.is_some()).count();
        assert!((400..600).contains(&waiting), "{waiting}");
        assert!((400..600).contains(&failing), "{failing}");
        let (delay, abort) = drawn
            .iter()
            .find_map(|(delay, abort)| Some(((*delay)?, (*abort)?)))
            .unwrap();
        assert_eq!(delay, Duration::from_millis(5));
        assert_eq!((abort.status.as_u16(), abort.grpc), (503, Some(14)));
        assert_eq!(Fault::compile(None), Ok(Fault::default()));
    }

    #[test]
    fn what_is_no_status_or_no_time_is_named() {
        assert_eq!(
            abort(Status::Http(99)).unwrap_err(),
            "fault.abort: no status 99"
        );
        assert_eq!(
            abort(Status::Http(600)).unwrap_err(),
            "fault.abort: no status 600"
        );
        assert_eq!(
            abort(Status::Grpc(17)).unwrap_err(),
            "fault.abort: no status of gRPC"
        );
        let endless = wire::Fault {
            delay: Some(wire::fault::Delay::default()),
            abort: None,
        };
        assert_eq!(
            Fault::compile(Some(&endless)).unwrap_err(),
            "fault.delay: not a time of an hour at most"
        );
        let answer = |status: u32, length: usize| {
            DirectResponse::compile(&wire::DirectResponse {
                status,
                body: vec![b'x'; length],
            })
        };
        assert!(answer(503, LONGEST_BODY).is_ok());
        assert_eq!(
            answer(101, 0).unwrap_err(),
            "direct_response: no status 101"
        );
        assert!(answer(200, LONGEST_BODY + 1).is_err());
    }
}
