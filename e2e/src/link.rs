// SPDX-License-Identifier: Apache-2.0
//! A worse link between the nodes: late, lossy, out of order, slow, narrow.
//!
//! ```text
//!  node a ── link-tun ─┐                        ┌─ link-tun ── node b
//!                      ├─ this process: [`shaper`] ┤
//!                      └──────── link-tun ── istiod-lite
//! ```
//! Comes in: [`Terms`], and later ones on standard input, one a line. While the process lives, more specific routes lead
//! the traffic between the nodes through its devices; when it ends, the devices and their routes are gone and the lab's
//! own link carries everything as before. What it does to packets depends on the terms and their seed alone.

pub mod shaper;
mod switch;
mod terms;

use std::io::{BufRead as _, Write as _};
use std::sync::mpsc;

use anyhow::{Context as _, Result};

pub use self::terms::Terms;
use crate::state::StateDir;

/// The devices' name, in both nodes and the control plane's place.
pub const DEVICE: &str = "link-tun";

/// Carries the traffic of a lab until standard input ends. Says `linked` once it does, and `changed` for each change.
pub fn run(state: &StateDir, terms: &Terms) -> Result<()> {
    let mut switch = switch::Switch::open(state, terms)?;
    say("linked");
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        switch.turn()?;
        match lines.try_recv() {
            Ok(line) => {
                let terms: Terms = line.parse().map_err(anyhow::Error::msg)?;
                switch.change(&terms).context("new terms of the link")?;
                say("changed");
            }
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout();
    // Whoever listened may be gone, which ends this anyway.
    let _listener_gone = writeln!(out, "{word}").and_then(|()| out.flush());
}
