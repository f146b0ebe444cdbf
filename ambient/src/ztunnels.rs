// SPDX-License-Identifier: Apache-2.0
//! Which ztunnels are asked, and their answers: those of a cluster, found and reached through its API server, or those at
//! addresses that somebody names.

use clap::Args;
use serde_json::Value;

use crate::admin::{self, Error, Question};
use crate::kubectl::{Cluster, name};
use crate::ps::{items, text};

const ADMIN_PORT: u16 = 15000;
const ISTIOD_ADMIN_PORT: u16 = 8080;
/// As many are asked at once.
const AT_ONCE: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct Ztunnels {
    /// Admin address of a ztunnel, HOST:PORT, instead of a cluster's; may be given again
    #[arg(long, value_name = "HOST:PORT")]
    ztunnel: Vec<String>,
    /// The ztunnel of this node alone
    #[arg(long, value_parser = name)]
    node: Option<String>,
    /// Where the mesh's own programs run
    #[arg(long, value_parser = name, default_value = "istio-system")]
    pub(crate) system_namespace: String,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

/// What a ztunnel says.
pub(crate) struct Answer {
    pub(crate) ztunnel: String,
    pub(crate) said: Result<Value, Error>,
}

impl Ztunnels {
    /// Whether a cluster says which they are.
    pub(crate) fn of_cluster(&self) -> bool {
        self.ztunnel.is_empty()
    }

    /// What their admin ports answer, in the order of the nodes.
    ///
    /// # Errors
    /// Nobody can say which ztunnels there are, or there is none.
    pub(crate) fn ask(&self, question: Question<'_>) -> Result<Vec<Answer>, Error> {
        if !self.of_cluster() {
            return Ok(at_once(&self.ztunnel, |address| Answer {
                ztunnel: address.clone(),
                said: admin::ask(address, question),
            }));
        }
        let pods = self.running("ztunnel", self.node.as_deref())?;
        Ok(at_once(&pods, |pod| Answer {
            ztunnel: format!("{} ({})", pod.node, pod.name),
            said: self.ask_pod(pod, ADMIN_PORT, question),
        }))
    }

    /// What the cluster's control plane answers, of which any replica knows the same.
    ///
    /// # Errors
    /// There is none, or none that answers: the last one's reason.
    pub(crate) fn ask_istiod(&self, question: Question<'_>) -> Result<Value, Error> {
        let pods = self.running("istiod", None)?;
        let mut said = None;
        for pod in &pods {
            match self.ask_pod(pod, ISTIOD_ADMIN_PORT, question) {
                Ok(answer) => return Ok(answer),
                Err(error) => said = Some(error),
            }
        }
        Err(said.expect("there is one at least"))
    }

    /// The pods of one of the mesh's own programs.
    fn running(&self, app: &str, node: Option<&str>) -> Result<Vec<Pod>, Error> {
        let namespace = &self.system_namespace;
        let list = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{app}");
        let found = self.cluster.get(&list)?;
        let pods = pods(&found, node);
        if pods.is_empty() {
            let on = node.map(|node| format!(" on node {node}"));
            return Err(Error {
                asked: list,
                cause: format!("no {app} runs{}", on.unwrap_or_default()),
            });
        }
        Ok(pods)
    }

    fn ask_pod(&self, pod: &Pod, port: u16, question: Question<'_>) -> Result<Value, Error> {
        if pod.phase != "Running" {
            return Err(Error {
                asked: format!("pod {}", pod.name),
                cause: format!("it is {}", pod.phase),
            });
        }
        let namespace = &self.system_namespace;
        let way = self.cluster.forward(namespace, &pod.name, port)?;
        admin::ask(&way.address, question)
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    node: String,
    name: String,
    phase: String,
}

/// Those of a list that are on this node, or on any.
fn pods(list: &Value, node: Option<&str>) -> Vec<Pod> {
    let items = items(list, "items");
    let found = items.into_iter().map(|pod| Pod {
        node: text(&pod["spec"]["nodeName"]),
        name: text(&pod["metadata"]["name"]),
        phase: text(&pod["status"]["phase"]),
    });
    let mut pods: Vec<Pod> = found
        .filter(|pod| node.is_none_or(|node| pod.node == node))
        .collect();
    pods.sort();
    pods
}

fn at_once<T: Sync>(asked: &[T], ask: impl Fn(&T) -> Answer + Sync) -> Vec<Answer> {
    let ask = &ask;
    let mut answers = Vec::new();
    for some in asked.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some
                .iter()
                .map(|one| scope.spawn(move || ask(one)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            answers.extend(joined.map(|answer| answer.expect("asking does not panic")));
        });
    }
    answers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_come_in_the_order_of_nodes_and_of_one_node_if_asked() {
        let pod = |node: &str, name: &str| {
            json!({
                "metadata": {"name": name}, "spec": {"nodeName": node}, "status": {"phase": "Running"},
            })
        };
        let list = json!({"items": [pod("b", "z-1"), pod("a", "z-2"), pod("b", "z-0")]});
        let names = |node| -> Vec<String> {
            let pods = pods(&list, node).into_iter();
            pods.map(|pod| pod.name).collect()
        };
        assert_eq!(names(None), ["z-2", "z-0", "z-1"]);
        assert_eq!(names(Some("b")), ["z-0", "z-1"]);
        assert_eq!(names(Some("c")), [""; 0]);
    }

    #[test]
    fn every_answer_stands_where_its_question_stood() {
        let asked: Vec<usize> = (0..AT_ONCE * 2 + 1).collect();
        let answers = at_once(&asked, |number| Answer {
            ztunnel: number.to_string(),
            said: Ok(json!(number)),
        });
        let numbers: Vec<Value> = answers.into_iter().map(|one| one.said.unwrap()).collect();
        assert_eq!(json!(numbers), json!(asked));
    }
}
