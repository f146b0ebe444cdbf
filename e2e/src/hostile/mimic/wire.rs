// SPDX-License-Identifier: Apache-2.0
//! The discovery stream, with messages that need not be any: requests are read, what is said is bytes.

use std::future::{Ready, ready};
use std::sync::Arc;

use prost::Message as _;
use proto::ads::DeltaDiscoveryRequest;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::bytes::BufMut as _;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Response, Status, Streaming};

use super::{QUEUE, Stage};

/// The bytes of a message, or the stream's end.
pub(super) type Said = Result<Vec<u8>, Status>;

/// One client's stream.
pub(super) struct Session(pub(super) Arc<Stage>);

impl tonic::server::StreamingService<DeltaDiscoveryRequest> for Session {
    type Response = Vec<u8>;
    type ResponseStream = ReceiverStream<Said>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<DeltaDiscoveryRequest>>) -> Self::Future {
        let (messages, said) = mpsc::channel(QUEUE);
        tokio::spawn(Arc::clone(&self.0).converse(request.into_inner(), messages));
        ready(Ok(Response::new(ReceiverStream::new(said))))
    }
}

#[derive(Debug, Default)]
pub(super) struct ByHand;

impl Codec for ByHand {
    type Encode = Vec<u8>;
    type Decode = DeltaDiscoveryRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for ByHand {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for ByHand {
    type Item = DeltaDiscoveryRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let request = DeltaDiscoveryRequest::decode(buffer);
        request
            .map(Some)
            .map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
