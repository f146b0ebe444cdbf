// SPDX-License-Identifier: Apache-2.0
//! Learns what a connection needs before it is decided on, where this node doesn't follow the whole mesh.
//!
//! In: the pure list of what is needed ([`crate::route::needs`]). Out: a mesh state that holds the answers, or a refusal:
//! what the control plane has not said is not guessed. A connection waits [`PATIENCE`] at most; where there was an answer
//! before, it is used once the wait for a fresh one is over.

use std::sync::Arc;
use std::time::Duration;

use mesh::Store;
use ops::metrics::Metrics;
use tokio::time::{Instant, timeout_at};
use xds::Demand;

use crate::failure::Failure;
use crate::mesh_state::MeshState;
use crate::route::needs::{Held, Needs};

/// How long a connection waits for all that it needs.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer that nothing is there is asked for again after this long: not every control plane tells of what comes later.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// A service, its waypoint, the gateway to that, and its service: more steps lead nowhere.
const STEPS: usize = 5;

/// Why something could not be learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unlearned {
    #[error("the control plane has not answered within {0:?}")]
    Timeout(Duration),
    #[error("too many questions to the control plane are open")]
    TooMany,
}

pub struct OnDemand {
    demand: Demand,
    metrics: Metrics,
}

impl OnDemand {
    pub fn new(metrics: Metrics) -> Self {
        metrics.describe(
            "culvert_on_demand_lookups_total",
            "Questions to the control plane that connections waited for, by outcome (unstable)",
        );
        Self {
            demand: Demand::new(),
            metrics,
        }
    }

    /// What the client of the control plane asks by.
    pub fn demand(&self) -> Demand {
        self.demand.clone()
    }

    /// Learns what is needed.
    pub async fn learn(
        &self,
        mesh: &MeshState,
        needs: impl Fn(&Store) -> Needs,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..STEPS {
            let missing = self.missing(&needs(&mesh.read()));
            if missing.is_empty() {
                return Ok(());
            }
            for Missing { key, answered } in missing {
                let refused = |reason| Failure::Unlearned {
                    key: key.clone(),
                    reason,
                };
                let Ok(answer) = self.demand.ask(&key) else {
                    self.count("refused");
                    return Err(refused(Unlearned::TooMany));
                };
                match (timeout_at(deadline, answer).await, answered) {
                    (Ok(()), _) => self.count("answered"),
                    (Err(_), Answered::Before) => self.count("stale"),
                    (Err(_), Answered::Never) => {
                        self.count("timeout");
                        return Err(refused(Unlearned::Timeout(PATIENCE)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks for what would be good to know, and waits for nothing.
    pub fn wonder(&self, mesh: &MeshState, needs: impl Fn(&Store) -> Needs) {
        for Missing { key, .. } in self.missing(&needs(&mesh.read())) {
            // Without an answer there is less to tell, and nothing else.
            let _ = self.demand.ask(&key);
        }
    }

    fn missing(&self, needs: &Needs) -> Vec<Missing> {
        let missing = needs.iter().filter_map(|(key, held)| {
            let answered = match self.demand.answered(key) {
                Some(_) if held == Held::Something => return None,
                Some(at) if at.elapsed() < ASK_AGAIN => return None,
                Some(_) => Answered::Before,
                None => Answered::Never,
            };
            Some(Missing {
                key: key.into(),
                answered,
            })
        });
        missing.collect()
    }

    fn count(&self, result: &str) {
        self.metrics
            .counter("culvert_on_demand_lookups_total", &[("result", result)])
            .increment(1);
    }
}

/// A key to be asked for.
struct Missing {
    key: Arc<str>,
    answered: Answered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    Before,
    Never,
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hbone::wire::Authority;
    use mesh::Workload;

    use super::*;
    use crate::route::needs;

    fn needs(store: &Store) -> Needs {
        let identity = "spiffe://cluster.local/ns/shop/sa/a".parse().unwrap();
        let local = Workload::new("uid", "shop", identity);
        let authority = Authority::Addr("10.0.0.9:80".parse().unwrap());
        let reached: IpAddr = "10.0.0.1".parse().unwrap();
        needs::inbound(store, &local, reached, "", &authority)
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_a_connection_is_refused_after_a_while() {
        let on_demand = OnDemand::new(Metrics::default());
        let mesh = MeshState::new(Store::new(None));
        let started = Instant::now();
        let refused = on_demand
            .learn(&mesh, needs)
            .await
            .expect_err("nobody answers");
        assert_eq!(started.elapsed(), PATIENCE);
        assert_eq!(
            refused.to_string(),
            "cannot learn what /10.0.0.9 is: the control plane has not answered within 5s"
        );
        assert_eq!(refused.flag().as_str(), "NO_ROUTE");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_needed_is_not_waited_for() {
        let on_demand = OnDemand::new(Metrics::default());
        let mesh = MeshState::new(Store::new(None));
        on_demand.wonder(&mesh, needs);
        let nothing = on_demand.learn(&mesh, |_| Needs::default()).await;
        assert!(nothing.is_ok());
    }
}
