// SPDX-License-Identifier: Apache-2.0
//! Where events come from, without saying from where.

use std::io;
use std::path::PathBuf;

use crate::directory::Directory;
use crate::object::{Object, ObjectKey};
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

/// What changed together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// At most one for each object: first all that is gone, then all that is new or changed, ordered by [`ObjectKey`].
    pub events: Vec<Event>,
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
    #[error("starting the thread that reads the manifest directory: {0}")]
    Thread(io::Error),
}

/// A stream of batches.
#[derive(Debug)]
pub struct Source {
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Directory(Directory),
}

impl From<Directory> for Source {
    fn from(directory: Directory) -> Self {
        Self {
            origin: Origin::Directory(directory),
        }
    }
}

impl Source {
    /// Waits for the next batch. The first is the whole state and comes even if it is empty; each later one holds at
    /// least one event or a changed set of problems. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Batch {
        match &mut self.origin {
            Origin::Directory(directory) => directory.next().await,
        }
    }
}
