// SPDX-License-Identifier: Apache-2.0
//! Path templates: `{*}` stands for exactly one segment that is not empty, `{**}` for whatever stands there, slashes and
//! nothing included. As in Istio, `{**}` is the last operator, and an operator fills its segment.

/// The longest template that is taken.
const LONGEST: usize = 2048;

/// A template whose operators are where they may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// What stands before `{**}`; all of it where there is no such.
    head: Box<[Segment]>,
    /// What stands behind `{**}`, with its slash; none where there is no such.
    tail: Option<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    One,
}

/// Why a text is no template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error("it does not begin with a slash")]
    Relative,
    #[error("an operator follows {{**}}")]
    AfterAny,
    #[error("a segment is neither an operator nor free of braces and stars")]
    Segment,
    #[error("a segment within it is empty")]
    Empty,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// Says why it is none.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        if text.len() > LONGEST {
            return Err(BadTemplate::TooLong);
        }
        let rest = text.strip_prefix('/').ok_or(BadTemplate::Relative)?;
        let mut head = Vec::new();
        let mut tail: Option<String> = None;
        let mut segments = rest.split('/').peekable();
        while let Some(segment) = segments.next() {
            let is_last = segments.peek().is_none();
            match (segment, &mut tail) {
                ("{*}" | "{**}", Some(_)) => return Err(BadTemplate::AfterAny),
                ("{**}", None) => tail = Some(String::new()),
                ("{*}", None) => head.push(Segment::One),
                (literal, _) if literal.contains(['{', '}', '*']) => {
                    return Err(BadTemplate::Segment);
                }
                // A slash at the end is part of the path.
                ("", _) if !is_last => return Err(BadTemplate::Empty),
                (literal, None) => head.push(Segment::Literal(literal.into())),
                (literal, Some(tail)) => {
                    tail.push('/');
                    tail.push_str(literal);
                }
            }
        }
        Ok(Self {
            head: head.into(),
            tail: tail.map(Into::into),
        })
    }

    /// Whether a path, without query, is one of those that it stands for.
    pub fn matches(&self, path: &str) -> bool {
        let mut rest = path;
        for segment in &self.head {
            let Some(after) = rest.strip_prefix('/') else {
                return false;
            };
            let end = after.find('/').unwrap_or(after.len());
            let (here, beyond) = after.split_at(end);
            let fits = match segment {
                Segment::Literal(literal) => here == &**literal,
                Segment::One => !here.is_empty(),
            };
            if !fits {
                return false;
            }
            rest = beyond;
        }
        match &self.tail {
            None => rest.is_empty(),
            Some(tail) => rest
                .strip_prefix('/')
                .is_some_and(|rest| rest.ends_with(&**tail)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn operators_stand_for_segments() {
        for (template, matching, others) in [
            (
                "/foo/{*}",
                &["/foo/bar", "/foo/bar.txt"][..],
                &["/foo", "/foo/", "/foo/a/b", "/food/a"][..],
            ),
            (
                "/foo/{*}/bar",
                &["/foo/x/bar"],
                &["/foo//bar", "/foo/x/y/bar", "/foo/x/bar/"],
            ),
            ("/foo/{*}/", &["/foo/x/"], &["/foo/x", "/foo//"]),
            (
                "/foo/{**}",
                &["/foo/", "/foo/a", "/foo/a/b/"],
                &["/foo", "/fo/a"],
            ),
            (
                "/foo/{**}/",
                &["/foo/a/", "/foo/a/b/", "/foo//"],
                &["/foo/a", "/foo/"],
            ),
            (
                "/foo/{*}/bar/{**}",
                &["/foo/x/bar/", "/foo/x/bar/y/z"],
                &["/foo/x/bar", "/foo/bar/y"],
            ),
            (
                "/{**}/end",
                &["/a/end", "/a/b/end", "//end"],
                &["/end", "/a/end/", "/a/bend"],
            ),
            ("/{*}", &["/a"], &["/", "/a/"]),
            ("/{**}", &["/", "/a/b"], &["", "*"]),
        ] {
            let read = Template::parse(template).unwrap();
            for path in matching {
                assert!(read.matches(path), "{template} {path}");
            }
            for path in others {
                assert!(!read.matches(path), "{template} {path}");
            }
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for (text, why) in [
            ("foo/{*}", BadTemplate::Relative),
            ("", BadTemplate::Relative),
            ("/{**}/{*}", BadTemplate::AfterAny),
            ("/{**}/{**}", BadTemplate::AfterAny),
            ("/a{*}", BadTemplate::Segment),
            ("/{*}b", BadTemplate::Segment),
            ("/{a}", BadTemplate::Segment),
            ("/{*}/*", BadTemplate::Segment),
            ("/a//{*}", BadTemplate::Empty),
        ] {
            assert_eq!(Template::parse(text), Err(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn matching_is_what_the_regular_expression_says(
            segments in prop::collection::vec(prop_oneof![Just("{*}"), Just("a"), Just("b.")], 0..4),
            any in any::<bool>(),
            behind in prop::collection::vec(prop_oneof![Just("a"), Just("c")], 0..3),
            path in "(/[ab.c]{0,2}){0,5}",
        ) {
            let mut all = segments;
            if any {
                all.push("{**}");
                all.extend(behind);
            }
            let text = format!("/{}", all.join("/"));
            let mut pattern = regex::escape(&text);
            for (operator, means) in [(r"\{\*\*\}", ".*"), (r"\{\*\}", "[^/]+")] {
                pattern = pattern.replace(operator, means);
            }
            let oracle = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
            let template = Template::parse(&text).unwrap();
            prop_assert_eq!(template.matches(&path), oracle.is_match(&path), "{} {}", text, path);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[/{}*a]{0,12}", path in "[/{}*a]{0,12}") {
            if let Ok(template) = Template::parse(&text) {
                let _ = template.matches(&path);
            }
        }
    }
}
