// SPDX-License-Identifier: Apache-2.0
//! Status written back: to the API server, or as one small file for each object and writer beside the manifests.
//!
//! Of files: readers see a file as it was or as it is, never in between. Where it lies and what it says: [`crate::overlay`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Handle;

use crate::api::apply::{self, List};
use crate::api::{Client, RequestError};
use crate::object::{Kind, ObjectKey};
use crate::overlay::{
    Partial, PartialFile, PartialMetadata, STATUS_DIRECTORY, Statement, object_directory,
};

/// How long whoever annotates waits for an API server.
const ANNOTATE: Duration = Duration::from_secs(2);

/// Why a status could not be written or removed.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error("status writer {0:?}: its name is made of a-z, 0-9 and -")]
    Manager(String),
    #[error("status of {object}: {part:?} can't be the name of a file")]
    Name { object: ObjectKey, part: String },
    #[error("status of {object}: {source}")]
    Encode {
        object: ObjectKey,
        source: serde_json::Error,
    },
    #[error("status of {object}: {path}: {source}", path = path.display())]
    Io {
        object: ObjectKey,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{path}: {source}", path = path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("status of {object}: {source}")]
    Request {
        object: ObjectKey,
        source: RequestError,
    },
}

impl StatusError {
    /// Whether it is of the way to the API server, and of no object.
    pub fn is_outage(&self) -> bool {
        let Self::Request { source, .. } = self else {
            return false;
        };
        source.code().is_none_or(|code| code >= 500)
    }
}

/// Whether anything had to be touched, or could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Changed,
    /// It says so already, or there is no such object.
    Unchanged,
    /// The object is another than the one that this was to be said of: look at it again.
    Outdated,
}

/// Writes the status of one writer ("manager"), who is alone under its name. Blocking: files are small, and an API
/// server is waited for.
#[derive(Clone, Debug)]
pub struct StatusWriter {
    place: Place,
    manager: String,
}

#[derive(Clone, Debug)]
enum Place {
    /// Beside the manifests of this directory.
    Directory(PathBuf),
    Api(Server),
}

#[derive(Clone, Debug)]
struct Server {
    client: Client,
    runtime: Handle,
    /// What it takes the conditions of a kind for, as far as that is known: definitions differ, and with them whether
    /// those of others have to be repeated.
    conditions: Arc<Mutex<BTreeMap<Kind, List>>>,
}

impl Server {
    fn write(
        &self,
        manager: &str,
        (object, uid): (&ObjectKey, &str),
        partial: &Partial,
    ) -> Result<Written, RequestError> {
        let kind = object.kind;
        let repeats = !partial.others.is_empty()
            && (kind.controllers_list().is_some()
                || self.conditions.lock().get(&kind) != Some(&List::Keyed));
        let whole = match repeats {
            true => with_others(kind, partial),
            false => alone(partial),
        };
        if whole.status.is_empty() && whole.annotations.is_empty() {
            return self.take_back(manager, object);
        }
        let applied = apply::apply(&self.client, manager, object, uid, &whole);
        let applied = self.runtime.block_on(applied)?;
        if let Some(list) = applied.conditions {
            self.conditions.lock().insert(kind, list);
            if repeats && list == List::Keyed {
                // What others said was theirs alone, and is to stay so.
                return self.write(manager, (object, uid), &alone(partial));
            }
        }
        Ok(applied.written)
    }

    fn take_back(&self, manager: &str, object: &ObjectKey) -> Result<Written, RequestError> {
        let taken_back = apply::take_back(&self.client, manager, object);
        self.runtime.block_on(taken_back)
    }
}

impl StatusWriter {
    /// `directory` is the one that holds the manifests.
    pub fn new(directory: impl AsRef<Path>, manager: &str) -> Result<Self, StatusError> {
        Self::at(Place::Directory(directory.as_ref().to_owned()), manager)
    }

    /// Writes to an API server, on the runtime of the caller; `write` and `remove` are then to be called on a thread
    /// that may block.
    pub fn to_server(client: Client, manager: &str) -> Result<Self, StatusError> {
        let server = Server {
            client,
            runtime: Handle::current(),
            conditions: Arc::default(),
        };
        Self::at(Place::Api(server), manager)
    }

    fn at(place: Place, manager: &str) -> Result<Self, StatusError> {
        let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if manager.is_empty() || manager.len() > 63 || !manager.bytes().all(valid) {
            return Err(StatusError::Manager(manager.to_owned()));
        }
        Ok(Self {
            place,
            manager: manager.to_owned(),
        })
    }

    /// Says all that this writer has to say about the object with this uid; what it said before is replaced.
    pub fn write(
        &self,
        object: &ObjectKey,
        uid: &str,
        partial: &Partial,
    ) -> Result<Written, StatusError> {
        let root = match &self.place {
            Place::Directory(root) => root,
            Place::Api(server) => {
                let written = server.write(&self.manager, (object, uid), partial);
                return answered(object, written);
            }
        };
        let says_nothing = partial.status.is_empty() && partial.annotations.is_empty();
        if says_nothing && !partial.others.is_empty() {
            return self.remove(object);
        }
        let path = self.path(root, object)?;
        let file = PartialFile {
            uid: uid.to_owned(),
            metadata: PartialMetadata {
                annotations: partial.annotations.clone(),
            },
            status: partial.status.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&file).map_err(|source| StatusError::Encode {
            object: object.clone(),
            source,
        })?;
        text.push(b'\n');
        if fs::read(&path).is_ok_and(|present| present == text) {
            return Ok(Written::Unchanged);
        }
        replace(&path, &text).map_err(|source| StatusError::Io {
            object: object.clone(),
            path,
            source,
        })?;
        Ok(Written::Changed)
    }

    /// Takes back what this writer said about the object.
    pub fn remove(&self, object: &ObjectKey) -> Result<Written, StatusError> {
        let root = match &self.place {
            Place::Directory(root) => root,
            Place::Api(server) => {
                return answered(object, server.take_back(&self.manager, object));
            }
        };
        let path = self.path(root, object)?;
        match fs::remove_file(&path) {
            Ok(()) => {
                // The last one to leave removes the empty directory.
                let _in_use = path.parent().map(fs::remove_dir);
                Ok(Written::Changed)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Written::Unchanged),
            Err(source) => Err(StatusError::Io {
                object: object.clone(),
                path,
                source,
            }),
        }
    }

    /// Has an annotation of the object with this uid say this, or takes it away: at an API server whoever made it. Gives up
    /// after two seconds. Beside manifests it is all that this writer says of the object.
    pub fn annotate(
        &self,
        object: &ObjectKey,
        uid: &str,
        annotation: &str,
        value: Option<&str>,
    ) -> Result<Written, StatusError> {
        match (&self.place, value) {
            (Place::Api(server), value) => {
                let said = serde_json::json!({ annotation: value });
                let annotated = apply::annotate(&server.client, &self.manager, object, uid, &said);
                let answer = server.runtime.block_on(async {
                    let answer = tokio::time::timeout(ANNOTATE, annotated).await;
                    answer.unwrap_or(Err(RequestError::Silent(ANNOTATE)))
                });
                answered(object, answer)
            }
            (Place::Directory(_), Some(value)) => {
                let annotations = [(annotation.to_owned(), value.to_owned())].into();
                let partial = Partial {
                    annotations,
                    ..Partial::default()
                };
                self.write(object, uid, &partial)
            }
            (Place::Directory(_), None) => self.remove(object),
        }
    }

    /// The object is gone. At an API server what was said of it went with it.
    pub fn forget(&self, object: &ObjectKey) -> Result<Written, StatusError> {
        match &self.place {
            Place::Directory(_) => self.remove(object),
            Place::Api(_) => Ok(Written::Unchanged),
        }
    }

    /// Takes back what this writer said about all objects for which `keep` is false, as after a restart. At an API
    /// server what is said of an object goes with it.
    pub fn retain(&self, mut keep: impl FnMut(&ObjectKey) -> bool) -> Result<(), StatusError> {
        let Place::Directory(root) = &self.place else {
            return Ok(());
        };
        for kind in Kind::ALL {
            let place = Path::new(STATUS_DIRECTORY).join(kind.as_str());
            for namespace in names(root, &place)? {
                let place = place.join(namespace);
                for name in names(root, &place)? {
                    let file = place.join(name).join(format!("{}.json", self.manager));
                    if let Ok(Statement { object, .. }) = Statement::from_path(&file)
                        && !keep(&object)
                    {
                        self.remove(&object)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn path(&self, root: &Path, object: &ObjectKey) -> Result<PathBuf, StatusError> {
        for part in [
            object.name.as_str(),
            object.namespace.as_deref().unwrap_or("_"),
        ] {
            if part.is_empty()
                || part.len() > 253
                || part.starts_with('.')
                || part.contains(['/', '\0'])
            {
                return Err(StatusError::Name {
                    object: object.clone(),
                    part: part.to_owned(),
                });
            }
        }
        Ok(root
            .join(object_directory(object))
            .join(format!("{}.json", self.manager)))
    }
}

/// What this writer says, whatever others do.
fn alone(partial: &Partial) -> Cow<'_, Partial> {
    if partial.others.is_empty() {
        return Cow::Borrowed(partial);
    }
    Cow::Owned(Partial {
        others: Vec::new(),
        version: String::new(),
        ..partial.clone()
    })
}

/// The same, in one list with what others say.
fn with_others(kind: Kind, partial: &Partial) -> Cow<'_, Partial> {
    let list = kind.controllers_list().unwrap_or("conditions");
    let mut whole = partial.clone();
    let said = whole.status.entry(list).or_insert_with(|| json!([]));
    if let Some(said) = said.as_array_mut() {
        let others = std::mem::take(&mut whole.others);
        said.splice(0..0, others);
    }
    Cow::Owned(whole)
}

fn names(root: &Path, place: &Path) -> Result<Vec<std::ffi::OsString>, StatusError> {
    let path = root.join(place);
    match fs::read_dir(&path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
    {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        result => result.map_err(|source| StatusError::List { path, source }),
    }
}

fn answered(
    object: &ObjectKey,
    answer: Result<Written, RequestError>,
) -> Result<Written, StatusError> {
    answer.map_err(|source| StatusError::Request {
        object: object.clone(),
        source,
    })
}

/// Writes under a name that nobody reads, then renames.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let directory = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let temporary = directory.join(format!(".{name}.{}.{serial}", std::process::id()));
    // Another writer may remove the directory while it is empty, even while it is being made.
    const ATTEMPTS: usize = 100;
    let vanished = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
        )
    };
    let mut attempt = 1;
    loop {
        match fs::create_dir_all(directory).and_then(|()| fs::write(&temporary, text)) {
            Err(error) if vanished(&error) && attempt < ATTEMPTS => attempt += 1,
            written => {
                // On a full disk half of it may be there, and would be for ever.
                let replaced = written.and_then(|()| fs::rename(&temporary, path));
                return replaced.inspect_err(|_| {
                    let _leftover = fs::remove_file(&temporary);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_given_what_others_say_of_parents_together_with_what_we_say() {
        let own = json!([{"controllerName": "own"}]);
        let mut partial = Partial::default();
        partial.status.insert("parents".to_owned(), own.clone());
        assert_eq!(*with_others(Kind::HTTPRoute, &partial), partial);
        partial.others = vec![json!({"controllerName": "other"})];
        let whole = with_others(Kind::HTTPRoute, &partial);
        let both = json!([{"controllerName": "other"}, {"controllerName": "own"}]);
        assert_eq!(whole.status["parents"], both);
        // Taking back what we said leaves what they say.
        partial.status.clear();
        let whole = with_others(Kind::HTTPRoute, &partial);
        assert_eq!(
            whole.status["parents"],
            json!([{"controllerName": "other"}])
        );
    }
}
