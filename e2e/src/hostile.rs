// SPDX-License-Identifier: Apache-2.0
//! Peers that mean harm: what they do to a tunnel port, and what they met.
//!
//! In: a target, and a certificate if the peer is to have one (made by [`forge`], outside of the lab). Out: what became
//! of it, as one JSON value. Judges nothing: the tests do.
//!
//! - [`forge`]: certificates that nobody should have
//! - [`shake`]: one handshake
//! - [`stray`]: one connection that is meant for somebody else
//! - [`ask`]: one request inside a tunnel
//! - [`flood`]: frames without end inside a tunnel
//! - [`crowd`]: many connections that come to nothing
//! - [`grpc`]: one call of the control plane
//! - [`mimic`]: a control plane that says what is wrong
//! - [`http2`]: frames, written and read by hand

pub mod ask;
pub mod crowd;
pub mod flood;
pub mod forge;
pub mod grpc;
pub mod http2;
pub mod mimic;
pub mod shake;
pub mod stray;

use anyhow::Result;
use serde::Serialize;

/// What a hostile peer does.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Hostile {
    /// Shake hands once
    Shake(shake::Shake),
    /// Send one request through a tunnel
    Ask(ask::Ask),
    /// Send frames through a tunnel for a while, or until it is ended
    Flood(flood::Flood),
    /// Open many connections that come to nothing; they end with standard input
    Crowd(crowd::Crowd),
    /// Call the control plane
    Grpc(grpc::Grpc),
    /// Lead a connection that is meant for somebody else into a pod
    Stray(stray::Stray),
    /// Take the control plane's place and say what is wrong; it ends with standard input
    Mimic(mimic::Mimic),
}

pub async fn run(hostile: &Hostile) -> Result<()> {
    match hostile {
        Hostile::Shake(shake) => print(&shake::run(shake).await?),
        Hostile::Ask(ask) => print(&ask::run(ask).await?),
        Hostile::Flood(flood) => print(&flood::run(flood).await?),
        Hostile::Crowd(crowd) => print(&crowd::run(crowd).await?),
        Hostile::Grpc(call) => print(&grpc::run(call).await?),
        Hostile::Stray(stray) => print(&stray::run(stray).await?),
        Hostile::Mimic(mimic) => mimic::run(mimic).await,
    }
}

fn print(report: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}
