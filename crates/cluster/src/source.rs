// SPDX-License-Identifier: Apache-2.0
//! Where events come from, without saying from where.

use std::io;
use std::path::PathBuf;

use crate::api::{Api, ConnectionError};
use crate::directory::Directory;
use crate::object::{Object, ObjectKey};
use crate::packed::Packed;
use crate::problem::Problem;

/// One change of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The object exists and looks like this. An object that was deleted and created again between two batches comes
    /// as applied alone: compare the uid.
    Applied(Object),
    /// The object is gone.
    Deleted(ObjectKey),
}

/// Several events, in their order. They are small until they are taken out, one by one: the first batch holds the
/// whole cluster, and nobody wants all of its objects at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events(Vec<Change>);

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Applied(Packed),
    Deleted(ObjectKey),
}

impl Events {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them; its object is made for the caller.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.0.iter().map(Change::event)
    }

    /// Adds what came later.
    pub fn append(&mut self, mut later: Self) {
        self.0.append(&mut later.0);
    }

    pub(crate) fn applied(&mut self, object: Packed) {
        self.0.push(Change::Applied(object));
    }

    pub(crate) fn deleted(&mut self, key: ObjectKey) {
        self.0.push(Change::Deleted(key));
    }
}

impl Change {
    fn event(&self) -> Event {
        match self {
            Self::Applied(object) => Event::Applied(object.unpack()),
            Self::Deleted(key) => Event::Deleted(key.clone()),
        }
    }
}

/// Takes events out of [`Events`], one by one.
#[derive(Debug)]
pub struct IntoIter(std::vec::IntoIter<Change>);

impl Iterator for IntoIter {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        Some(match self.0.next()? {
            Change::Applied(object) => Event::Applied(object.unpack()),
            Change::Deleted(key) => Event::Deleted(key),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl IntoIterator for Events {
    type Item = Event;
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter(self.0.into_iter())
    }
}

/// What changed together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// At most one for each object: first all that is gone, then all that is new or changed, ordered by [`ObjectKey`].
    pub events: Events,
    /// All that is wrong at this moment, not only what is new.
    pub problems: Vec<Problem>,
}

/// Why a source could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("manifest directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("manifest directory {path}: watching for changes")]
    Watch { path: PathBuf, source: io::Error },
    #[error("starting the thread that reads the cluster's objects: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

/// A stream of batches.
#[derive(Debug)]
pub struct Source {
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Directory(Directory),
    Api(Api),
}

impl From<Api> for Source {
    fn from(api: Api) -> Self {
        Self {
            origin: Origin::Api(api),
        }
    }
}

impl From<Directory> for Source {
    fn from(directory: Directory) -> Self {
        Self {
            origin: Origin::Directory(directory),
        }
    }
}

impl Source {
    /// Whether each change comes whole. Of a folder, several files may be one change.
    pub fn tells_whole_changes(&self) -> bool {
        matches!(self.origin, Origin::Api(_))
    }

    /// Waits for the next batch. The first is the whole state and comes even if it is empty; each later one holds at
    /// least one event or a changed set of problems. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Batch {
        match &mut self.origin {
            Origin::Directory(directory) => directory.next().await,
            Origin::Api(api) => api.next().await,
        }
    }
}
