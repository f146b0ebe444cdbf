// SPDX-License-Identifier: Apache-2.0
//! Reads what callgrind writes: which function of which object took how many instructions by itself. Pure.
//!
//! The format (valgrind's manual, "Callgrind Format Specification"): lines that name the place, then lines of a position
//! and a cost. A call is told by a line `calls=` and one with what all of the call took, which is not the caller's own.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail};

/// Where instructions are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) object: String,
    /// The source, as the debug information names it.
    pub(super) file: String,
    pub(super) function: String,
}

/// Own instructions of each place.
pub(super) fn costs(text: &str) -> Result<BTreeMap<Place, u64>> {
    let (mut objects, mut files, mut functions) =
        (Names::default(), Names::default(), Names::default());
    let mut place = Place {
        object: String::new(),
        file: String::new(),
        function: String::new(),
    };
    let (mut costs, mut of_a_call) = (BTreeMap::new(), false);
    for (number, line) in text.lines().enumerate() {
        let wrong = || format!("line {}: {line:?}", number + 1);
        match line.split_once('=') {
            Some(("ob", name)) => place.object = objects.of(name).with_context(wrong)?,
            Some(("fn", name)) => place.function = functions.of(name).with_context(wrong)?,
            // Within a function too, where another is inlined.
            Some(("fl" | "fi" | "fe", name)) => place.file = files.of(name).with_context(wrong)?,
            // Named here and referred to later, by callers and callees alike.
            Some(("cob", name)) => drop(objects.of(name).with_context(wrong)?),
            Some(("cfl" | "cfi", name)) => drop(files.of(name).with_context(wrong)?),
            Some(("cfn", name)) => drop(functions.of(name).with_context(wrong)?),
            Some(("calls", _)) => of_a_call = true,
            Some(_) => {}
            None if line.starts_with(['+', '-', '*']) || line.starts_with(char::is_numeric) => {
                if std::mem::take(&mut of_a_call) {
                    continue;
                }
                let cost = line.split_whitespace().nth(1).map_or(Ok(0), str::parse);
                *costs.entry(place.clone()).or_default() += cost.with_context(wrong)?;
            }
            None => {}
        }
    }
    if costs.is_empty() {
        bail!("no costs in it");
    }
    Ok(costs)
}

/// Names by number: `(7) name` the first time, `(7)` later.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn of(&mut self, text: &str) -> Result<String> {
        let Some((number, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')'))
        else {
            return Ok(text.to_owned());
        };
        let name = name.trim();
        if !name.is_empty() {
            self.0.insert(number.to_owned(), name.to_owned());
        }
        let known = self.0.get(number);
        known
            .cloned()
            .with_context(|| format!("name ({number}) was never given"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "# callgrind format
version: 1
creator: callgrind-3.19.0
positions: line
events: Ir
summary: 1010

ob=(1) /bin/work
fl=(1) work.rs
fn=(1) main
16 400
+1 100
cob=(2) /lib/libc.so.6
cfi=(2) string.c
cfn=(2) memcpy
calls=1 50
* 400
fi=(3) lib.rs
-2 5
fe=(1)
+1 5

ob=(2)
fl=(2)
fn=(2)
50 400
";

    fn cost(costs: &BTreeMap<Place, u64>, words: [&str; 3]) -> Option<u64> {
        let [object, file, function] = words.map(str::to_owned);
        let place = Place {
            object,
            file,
            function,
        };
        costs.get(&place).copied()
    }

    #[test]
    fn what_a_call_took_is_the_callees_alone() {
        let costs = costs(EXAMPLE).unwrap();
        assert_eq!(cost(&costs, ["/bin/work", "work.rs", "main"]), Some(505));
        assert_eq!(cost(&costs, ["/bin/work", "lib.rs", "main"]), Some(5));
        assert_eq!(
            cost(&costs, ["/lib/libc.so.6", "string.c", "memcpy"]),
            Some(400)
        );
        assert_eq!(costs.len(), 3);
    }

    #[test]
    fn what_is_no_such_text_is_an_error() {
        for bad in ["", "events: Ir\n", "fn=(3)\n1 1\n", "fn=main\n1 many\n"] {
            assert!(costs(bad).is_err(), "{bad:?}");
        }
    }
}
