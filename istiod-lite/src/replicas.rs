// SPDX-License-Identifier: Apache-2.0
//! Replicas tell each other of the certificates that each has signed, in one ConfigMap of the root namespace: an entry for
//! each process, written by it alone, taken away by whoever finds that nothing of it counts any more.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use cluster::{Client, RequestError};
use http::Request;
use ops::shutdown::DrainSignal;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{authority::Asked, ca::Record, status};

const NAME: &str = "istiod-lite-authority";
/// Between one look and the next.
const ROUND: Duration = Duration::from_secs(5);
/// How often to write though there is nothing new to say, which tells others that this one lives.
const BEAT: Duration = Duration::from_secs(20);
/// For one request.
const PATIENCE: Duration = Duration::from_secs(4);

/// Tells and listens until the drain, and then for the last time: what was signed outlives who signed it. `replica` names
/// this one; what makes it unique is added.
pub async fn tell_each_other(
    client: Client,
    namespace: &str,
    replica: &str,
    asked: Asked,
    drain: DrainSignal,
) {
    let mut board = Board {
        client,
        path: format!("/api/v1/namespaces/{namespace}/configmaps"),
        key: format!("{replica}.{:016x}", rand::random::<u64>()),
        asked,
        told: None,
        failing: false,
    };
    loop {
        board.look().await;
        tokio::select! {
            () = tokio::time::sleep(ROUND) => {}
            () = drain.requested() => break,
        }
    }
    board.told = None;
    board.look().await;
}

struct Board {
    client: Client,
    /// Of the namespace's ConfigMaps.
    path: String,
    /// Where this replica writes.
    key: String,
    asked: Asked,
    /// What it wrote last, and when.
    told: Option<(Record, Instant)>,
    failing: bool,
}

impl Board {
    async fn look(&mut self) {
        let outcome = match tokio::time::timeout(PATIENCE, self.round()).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_) => Err("no answer".to_owned()),
        };
        match outcome {
            Ok(()) => self.failing = false,
            // Said once for as long as it lasts.
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(
                    error,
                    "what replicas tell each other of certificates can't be read or written: no change of roots goes on"
                );
            }
            Err(_) => {}
        }
    }

    /// Writes before it listens: whoever takes a step has told how it stands.
    async fn round(&mut self) -> Result<(), RequestError> {
        let found = self.find().await?;
        self.tell(found.is_some()).await?;
        let mut others = read(found.unwrap_or_default());
        others.remove(&self.key);
        let obsolete = self.asked.authority.hear(others, SystemTime::now());
        if !obsolete.is_empty() {
            let gone = obsolete.into_iter().map(|name| (name, Value::Null));
            self.merge(gone.collect()).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, there: bool) -> Result<(), RequestError> {
        let mut record = self.asked.record();
        if let Some((told, at)) = self.told.as_ref().filter(|_| there)
            && told.says(&record)
            && at.elapsed() < BEAT
        {
            return Ok(());
        }
        record.beat = rand::random();
        let entry = json!(json!(record).to_string());
        let data = Map::from_iter([(self.key.clone(), entry)]);
        if !there {
            self.create().await?;
        }
        self.merge(data).await?;
        self.told = Some((record, Instant::now()));
        Ok(())
    }

    async fn find(&self) -> Result<Option<Map<String, Value>>, RequestError> {
        let request = Request::get(format!("{}/{NAME}", self.path)).body(Vec::new());
        match self.send(request).await {
            Ok(mut found) => match found["data"].take() {
                Value::Object(data) => Ok(Some(data)),
                _ => Ok(Some(Map::new())),
            },
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn merge(&self, data: Map<String, Value>) -> Result<(), RequestError> {
        let path = format!("{}/{NAME}", self.path);
        let patch = json!({ "data": data });
        let merged = self.client.merge(&path, status::MANAGER, &patch).await;
        merged.map(drop)
    }

    /// With nothing in it, so that two who do it at once take nothing from each other.
    async fn create(&self) -> Result<(), RequestError> {
        let path = format!("{}/{NAME}", self.path);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}});
        let made = self.client.apply(&path, status::MANAGER, &object).await;
        made.map(drop)
    }

    async fn send(
        &self,
        request: Result<Request<Vec<u8>>, http::Error>,
    ) -> Result<Value, RequestError> {
        let path = &self.path;
        let request = request.map_err(|error| RequestError::Broken(format!("{path}: {error}")))?;
        self.client.call(request).await
    }
}

/// An entry that nobody can read tells that there is somebody who is ready for nothing, until it is silent.
fn read(data: Map<String, Value>) -> BTreeMap<String, Record> {
    let entry = |(name, text): (String, Value)| {
        let text = text.as_str().unwrap_or_default();
        (name, serde_json::from_str(text).unwrap_or_default())
    };
    data.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_can_not_be_read_is_somebody_all_the_same() {
        let text = json!(Record::default()).to_string();
        let data = json!({"a": text, "b": "{", "c": 7});
        let records = read(data.as_object().cloned().unwrap_or_default());
        let names: Vec<_> = records.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
