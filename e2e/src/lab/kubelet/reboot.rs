// SPDX-License-Identifier: Apache-2.0
//! A node that loses its power and comes back.
//!
//! ```text
//!  order ─► every process of the node killed, no CNI DEL, nothing said in any status
//!        ─► what lay in memory is gone: sandboxes, the agent's and the proxy's run directories
//!        ─► the same pods again, all at once, daemons among them
//! ```
//! The node's own network namespace stays, as it is what the lab's wires are tied to.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::{Shared, Worker};
use crate::lab::progress;
use crate::topology::{Node, PodName};

const LOOK: Duration = Duration::from_millis(50);

/// Looks for orders for as long as the lab lives.
pub(super) async fn follow_orders(shared: Rc<Shared>) {
    loop {
        tokio::time::sleep(LOOK).await;
        for node in shared.runtimes.keys().copied() {
            let order = shared.state.reboot_order(node);
            if order.exists() {
                reboot(&shared, node).await;
                if let Err(error) = std::fs::remove_file(&order) {
                    progress(format!("{}: {error}", order.display()));
                }
            }
        }
    }
}

async fn reboot(shared: &Rc<Shared>, node: Node) {
    let workers: HashMap<PodName, Worker> = shared
        .workers
        .borrow_mut()
        .extract_if(|_, worker| worker.node == node)
        .collect();
    let pods = workers
        .iter()
        .map(|(name, worker)| (name.clone(), worker.pod.clone()));
    let pods = pods.collect();
    shared.without_power.borrow_mut().insert(node, pods);
    for worker in workers.values() {
        worker.stop.cancel();
    }
    for worker in workers.into_values() {
        let _joined = worker.task.await;
    }
    if let Err(error) = shared.runtimes[&node].lose_memory() {
        progress(format!("{node}: {error:#}"));
    }
    let pods = shared.without_power.borrow_mut().remove(&node);
    for (name, pod) in pods.unwrap_or_default() {
        shared.run(name, pod, node);
    }
    progress(format!("{node} has its power back"));
}
