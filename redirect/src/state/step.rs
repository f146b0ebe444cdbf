// SPDX-License-Identifier: Apache-2.0
//! What is wished for a pod, and the steps that lead there.

use std::sync::Arc;

use super::pod::Redirection;
use crate::enroll::Reason;
use crate::memory::Sandbox;
use crate::plan::{PodOptions, Reach};

/// How a pod's traffic should be treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    Captured(PodOptions),
    Released(Reason),
    Ended,
    /// The cluster doesn't know the pod.
    Gone,
}

/// Something to do for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Capture {
        sandbox: Arc<Sandbox>,
        options: PodOptions,
    },
    /// See whether somebody answers DNS in the pod.
    LookForResolver {
        sandbox: Arc<Sandbox>,
    },
    /// Capture less of what is new; leave what is open as it is.
    Loosen {
        sandbox: Arc<Sandbox>,
        options: PodOptions,
        reach: Reach,
    },
    Release {
        sandbox: Arc<Sandbox>,
    },
    Annotate {
        uid: String,
        namespace: String,
        name: String,
        value: Option<Redirection>,
    },
    Forget {
        sandbox: Arc<Sandbox>,
    },
}

/// Were rules already there when we came? After a restart of the agent ztunnel has served such a pod all along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuity {
    Found,
    Fresh,
}
