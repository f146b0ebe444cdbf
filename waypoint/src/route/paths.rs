// SPDX-License-Identifier: Apache-2.0
//! Finds what may match a path, the more specific first, in a time that depends on the path alone.
//!
//! ```text
//!  1. exact paths         one look-up
//!  2. prefixes            one look-up for each element of the path, then upwards from the deepest that is one
//!  3. patterns            one after the other, the longer first
//!  4. any path, or "/"
//! ```
//!
//! The place of patterns is the implementation's choice. Istio's is behind all prefixes, "/" too, where a rule for all
//! that is left would hide every pattern; so "/" comes last here.

use std::collections::HashMap;

use super::conditions::Specificity;
use crate::pattern::Pattern;

/// Things by the paths that they are for.
#[derive(Debug)]
pub(super) struct Paths<T> {
    exact: HashMap<Box<str>, Vec<T>>,
    /// The first is the root: things for any path.
    nodes: Vec<Node<T>>,
    patterns: Vec<(Test, T)>,
}

/// A prefix, or a part of one.
#[derive(Debug)]
struct Node<T> {
    children: HashMap<Box<str>, usize>,
    things: Vec<T>,
    parent: usize,
    /// Bytes of the prefix that ends here.
    length: usize,
}

/// What a path has to be.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// This very one.
    Exact(Box<str>),
    /// This one or below it; with no slash at the end.
    Prefix(Box<str>),
    /// What such a test says.
    Pattern(Test),
    /// Whatever it is.
    Any,
}

/// What only looking at a path can tell.
#[derive(Debug, Clone)]
pub(super) enum Test {
    /// An expression matches all of it.
    Whole(Pattern, Longer),
    /// It is `/service/method` with such a service and such a method.
    Grpc {
        service: Part,
        method: Part,
        longer: Longer,
    },
    /// It begins so: that much is asked for, or known of an expression that can't be read.
    Start(Box<str>, Longer),
}

/// The longer goes first: service and method of gRPC, else the expression.
pub(super) type Longer = (usize, usize);

/// A service's or method's name.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Any,
    Exact(Box<str>),
    Pattern(Pattern),
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            nodes: vec![Node {
                children: HashMap::new(),
                things: Vec::new(),
                parent: 0,
                length: 0,
            }],
            patterns: Vec::new(),
        }
    }
}

impl<T> Paths<T> {
    /// Adds a thing for a path; [`Self::sort`] has to follow.
    pub(super) fn insert(&mut self, place: Place, thing: T) {
        match place {
            Place::Exact(path) => self.exact.entry(path).or_default().push(thing),
            Place::Prefix(prefix) => {
                let at = self.node(&prefix);
                self.nodes[at].things.push(thing);
            }
            Place::Pattern(test) => self.patterns.push((test, thing)),
            Place::Any => self.nodes[0].things.push(thing),
        }
    }

    /// The node of a prefix, made if it isn't there.
    fn node(&mut self, prefix: &str) -> usize {
        let mut at = 0;
        let mut length = 0;
        for element in elements(prefix) {
            length += 1 + element.len();
            at = match self.nodes[at].children.get(element) {
                Some(child) => *child,
                None => {
                    let new = self.nodes.len();
                    self.nodes[at].children.insert(element.into(), new);
                    self.nodes.push(Node {
                        children: HashMap::new(),
                        things: Vec::new(),
                        parent: at,
                        length,
                    });
                    new
                }
            };
        }
        at
    }

    /// Puts things for one path in order.
    pub(super) fn sort(&mut self, key: impl Fn(&T) -> (Specificity, usize)) {
        for things in self.exact.values_mut() {
            things.sort_by_key(&key);
        }
        for node in &mut self.nodes {
            node.things.sort_by_key(&key);
        }
        let longer = |test: &Test| std::cmp::Reverse(test.longer());
        self.patterns
            .sort_by_key(|(test, thing)| (longer(test), key(thing)));
    }

    /// The first thing for a path that `choose` takes, with the length of the prefix that it is for.
    pub(super) fn find<'t>(
        &'t self,
        path: &str,
        choose: impl Fn(&T) -> bool,
    ) -> Option<(&'t T, usize)> {
        let first = |things: &'t [T]| things.iter().find(|thing| choose(thing));
        let exact = self.exact.get(path).and_then(|things| first(things));
        if let Some(thing) = exact {
            return Some((thing, path.len()));
        }
        let mut at = self.deepest(path);
        while at != 0 {
            let node = &self.nodes[at];
            if let Some(thing) = first(&node.things) {
                return Some((thing, node.length));
            }
            at = node.parent;
        }
        let mut patterns = self.patterns.iter();
        let pattern = patterns.find(|(test, thing)| choose(thing) && test.holds(path));
        let last = || first(&self.nodes[0].things);
        Some((pattern.map(|(_, thing)| thing).or_else(last)?, 0))
    }

    fn deepest(&self, path: &str) -> usize {
        let mut at = 0;
        for element in elements(path) {
            match self.nodes[at].children.get(element) {
                Some(child) => at = *child,
                None => break,
            }
        }
        at
    }
}

/// What stands between the slashes of a path; nothing of what isn't one.
fn elements(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('/')
        .into_iter()
        .flat_map(|rest| rest.split('/'))
}

impl Place {
    /// Whether a path is one of these, and how much of it is the prefix, but for a slash at its end.
    pub(super) fn covers(&self, path: &str) -> Option<usize> {
        match self {
            Self::Exact(exact) => (**exact == *path).then_some(path.len()),
            Self::Prefix(prefix) => {
                let rest = path.strip_prefix(&**prefix)?;
                (rest.is_empty() || rest.starts_with('/')).then_some(prefix.len())
            }
            Self::Pattern(Test::Start(start, _)) => path
                .starts_with(&**start)
                .then_some(start.trim_end_matches('/').len()),
            Self::Pattern(test) => test.holds(path).then_some(0),
            Self::Any => Some(0),
        }
    }
}

impl Test {
    fn longer(&self) -> Longer {
        let (Self::Whole(_, longer) | Self::Grpc { longer, .. } | Self::Start(_, longer)) = self;
        *longer
    }

    fn holds(&self, path: &str) -> bool {
        match self {
            Self::Whole(pattern, _) => pattern.matches(path.as_bytes()),
            Self::Start(start, _) => path.starts_with(&**start),
            Self::Grpc {
                service, method, ..
            } => {
                let named = path.strip_prefix('/').and_then(|path| path.split_once('/'));
                named.is_some_and(|(s, m)| !m.contains('/') && service.is(s) && method.is(m))
            }
        }
    }
}

impl Part {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Any => !name.is_empty(),
            Self::Exact(expected) => **expected == *name,
            Self::Pattern(pattern) => pattern.matches(name.as_bytes()),
        }
    }
}

/// What every path begins with that an expression can match, as far as its letters say so. Less is always right.
pub(super) fn literal_start(expression: &str) -> &str {
    const SPECIAL: [char; 13] = [
        '\\', '.', '+', '*', '?', '(', ')', '[', ']', '{', '}', '^', '$',
    ];
    if expression.contains('|') || expression.starts_with('^') {
        return "";
    }
    let end = expression.find(SPECIAL).unwrap_or(expression.len());
    let literal = &expression[..end];
    // What may stand there no times at all is no part of it.
    match expression[end..].starts_with(['*', '?', '{']) {
        true => {
            let last = literal.char_indices().next_back();
            last.map_or("", |(at, _)| &literal[..at])
        }
        false => literal,
    }
}
