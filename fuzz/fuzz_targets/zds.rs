// SPDX-License-Identifier: Apache-2.0
//! The socket between node agent and ztunnel, with either end hostile.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ztunnel::zds_client::fuzzing::{Sent, converse};

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    if *mode == 0 {
        return redirect::zds_server::fuzzing::packet(data);
    }
    let descriptor = match mode & 2 {
        0 => || std::fs::File::open("/dev/null").expect("opens").into(),
        _ => || {
            std::fs::File::open("/proc/self/ns/net")
                .expect("opens")
                .into()
        },
    };
    let packets = fuzz::parts(data).map(|(kind, bytes)| Sent {
        bytes,
        descriptors: usize::from(kind & 3),
        truncated: kind & 0x80 != 0,
    });
    converse(packets, descriptor, mode & 4 == 0);
});
