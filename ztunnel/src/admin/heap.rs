// SPDX-License-Identifier: Apache-2.0
//! `/debug/pprof/heap`: what holds memory, by the stacks that allocated it.
//!
//! Only jemalloc keeps such a record, from the moment that it is switched on; builds without the feature `jemalloc` use
//! the system's allocator and say so.

use http::StatusCode;
use ops::admin::{AdminRequest, AdminResponse, text};

#[cfg(not(feature = "jemalloc"))]
const NOT_BUILT: &str = "no heap profile: this build uses the system's allocator, which keeps no record; \
                         build with `--features jemalloc`\n";

#[cfg(not(feature = "jemalloc"))]
pub(super) async fn profile() -> AdminResponse {
    text(StatusCode::INTERNAL_SERVER_ERROR, NOT_BUILT)
}

#[cfg(not(feature = "jemalloc"))]
pub(super) async fn switch(_: AdminRequest) -> AdminResponse {
    text(StatusCode::INTERNAL_SERVER_ERROR, NOT_BUILT)
}

#[cfg(feature = "jemalloc")]
pub(super) use with_jemalloc::{profile, switch};

#[cfg(feature = "jemalloc")]
mod with_jemalloc {
    use jemalloc_pprof::PROF_CTL;
    use ops::admin::answer;

    use super::*;

    /// The record is switched off for good where the process was started so.
    const NOT_STARTED: &str = "no heap profile: jemalloc was started without prof:true\n";

    pub(in super::super) async fn profile() -> AdminResponse {
        let Some(control) = PROF_CTL.as_ref() else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, NOT_STARTED);
        };
        let mut control = control.lock().await;
        if !control.activated() {
            let hint =
                "heap profiling is not active; POST /debug/pprof/heap/profiling?activate=true\n";
            return text(StatusCode::INTERNAL_SERVER_ERROR, hint);
        }
        match control.dump_pprof() {
            Ok(profile) => answer(StatusCode::OK, "application/octet-stream", profile),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
        }
    }

    pub(in super::super) async fn switch(request: AdminRequest) -> AdminResponse {
        let Some(control) = PROF_CTL.as_ref() else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, NOT_STARTED);
        };
        let mut control = control.lock().await;
        let switched = match request.query_value("activate") {
            None => Ok(()),
            Some("true") => control.activate(),
            Some("false") => control.deactivate(),
            Some(other) => {
                let problem = format!("activate={other}: want true or false\n");
                return text(StatusCode::BAD_REQUEST, problem);
            }
        };
        let state = if control.activated() {
            "active"
        } else {
            "inactive"
        };
        match switched {
            Ok(()) => text(StatusCode::OK, format!("heap profiling is {state}\n")),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}
