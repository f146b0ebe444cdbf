// SPDX-License-Identifier: Apache-2.0
//! Calls of the control plane with bytes that are no message, or one that nobody should send, under a token that is in
//! order.

use std::time::Duration;

use anyhow::{Context as _, Result};
use http::uri::PathAndQuery;
use serde::{Deserialize, Serialize};
use tokio_util::bytes::{Buf as _, BufMut as _};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

use crate::member::Member;

#[derive(Debug, Clone, clap::Args)]
pub struct Grpc {
    #[command(flatten)]
    pub member: Member,
    /// The method: /PACKAGE.SERVICE/METHOD
    #[arg(long)]
    pub method: PathAndQuery,
    /// The bytes of one message, in hexadecimal digits
    #[arg(long, default_value = "")]
    pub bytes: String,
    /// How often these stand in it
    #[arg(long, default_value_t = 1)]
    pub times: usize,
    /// How many such messages are sent
    #[arg(long, default_value_t = 1)]
    pub messages: usize,
}

/// What was answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answered {
    /// Messages that came back.
    pub messages: usize,
    /// The gRPC code and text of the end; none while it goes on.
    pub status: Option<(i32, String)>,
}

/// How long the answer may be waited for; a stream that is in order goes on.
const PATIENCE: Duration = Duration::from_secs(5);

pub async fn run(call: &Grpc) -> Result<Answered> {
    let message = decode(&call.bytes)?.repeat(call.times);
    let channel = call.member.control_plane()?.channel().await?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.ok().context("not connected")?;
    let messages = tokio_stream::iter(vec![message; call.messages]);
    // The end of what is sent would be a reason to end the answer.
    let messages = tokio_stream::StreamExt::chain(messages, tokio_stream::pending());
    let mut answered = Answered {
        messages: 0,
        status: None,
    };
    let hearing = async {
        let request = Request::new(messages);
        let called = client.streaming(request, call.method.clone(), Raw);
        let mut stream = called.await?.into_inner();
        while stream.message().await?.is_some() {
            answered.messages += 1;
        }
        Err::<(), _>(Status::ok("the stream ended in order"))
    };
    let status = match tokio::time::timeout(PATIENCE, hearing).await {
        Ok(Err(status)) => Some((status.code().into(), status.message().to_owned())),
        Ok(Ok(())) | Err(_) => None,
    };
    Ok(Answered { status, ..answered })
}

fn decode(text: &str) -> Result<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let pair = std::str::from_utf8(pair).context("--bytes")?;
            u8::from_str_radix(pair, 16).with_context(|| format!("--bytes: {pair}"))
        })
        .collect()
}

/// Messages are bytes.
#[derive(Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = usize;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = usize;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<usize>, Status> {
        let length = buffer.remaining();
        buffer.advance(length);
        Ok(Some(length))
    }
}
