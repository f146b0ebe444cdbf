// SPDX-License-Identifier: Apache-2.0
//! A connection that has become something else, a WebSocket as a rule: bytes both ways until either end is done.

use hbone::Stop;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::exchange::Exchange;
use crate::failure::Failure;

pub(super) struct Upgraded {
    pub(super) client: OnUpgrade,
    pub(super) endpoint: OnUpgrade,
}

impl Upgraded {
    /// Carries it in a task of its own, which ends the exchange.
    pub(super) fn carry(self, exchange: Box<Exchange>, stop: Stop) {
        tokio::spawn(async move {
            let mut exchange = exchange;
            let carried = async {
                let (client, endpoint) = tokio::try_join!(self.client, self.endpoint)
                    .map_err(|error| Failure::Broken(error.to_string().into()))?;
                let (mut client, mut endpoint) = (TokioIo::new(client), TokioIo::new(endpoint));
                copy_bidirectional(&mut client, &mut endpoint)
                    .await
                    .map_err(|error| Failure::Broken(error.to_string().into()))
            };
            let result = tokio::select! {
                carried = carried => carried,
                reason = stop.stopped() => Err(Failure::PolicyChanged(reason)),
            };
            let result = result.map(|(up, down)| exchange.carried(up, down));
            exchange.finish(result);
        });
    }
}
