// SPDX-License-Identifier: Apache-2.0
//! The profile format that `go tool pprof` and its kin read, as far as a CPU profile needs it.
//!
//! The schema is profile.proto of <https://github.com/google/pprof/tree/main/proto>; its field numbers are the contract.
//! Names live in one table and are referred to by their place in it; place 0 is the empty text.

use std::collections::HashMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub period: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct ValueType {
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// The leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Label {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub str: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Location {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Function {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    #[prost(int64, tag = "4")]
    pub filename: i64,
}

/// One function call on a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    pub function: String,
    pub file: String,
    pub line: u32,
}

/// Builds a profile sample by sample.
pub struct Builder {
    profile: Profile,
    texts: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<Vec<Call>, u64>,
    period: i64,
}

impl Builder {
    /// For samples taken every `period` nanoseconds of processor time.
    pub fn cpu(period: i64) -> Self {
        let mut builder = Self {
            profile: Profile::default(),
            texts: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            period,
        };
        builder.text("");
        let mut kind = |name, unit| ValueType {
            r#type: builder.text(name),
            unit: builder.text(unit),
        };
        let (samples, cpu) = (kind("samples", "count"), kind("cpu", "nanoseconds"));
        builder.profile.sample_type = vec![samples, cpu];
        builder.profile.period_type = Some(cpu);
        builder.profile.period = period;
        builder
    }

    /// A stack that was seen `count` times in a thread, the leaf first; calls that were inlined into one another stand
    /// together, the innermost first.
    pub fn add(&mut self, thread: &str, stack: Vec<Vec<Call>>, count: i64) {
        let label = Label {
            key: self.text("thread"),
            str: self.text(thread),
        };
        let location_id = stack
            .into_iter()
            .map(|calls| self.location(calls))
            .collect();
        self.profile.sample.push(Sample {
            location_id,
            value: vec![count, count.saturating_mul(self.period)],
            label: vec![label],
        });
    }

    /// When it began and how long it took, in nanoseconds since 1970 and in all.
    pub fn finish(mut self, time_nanos: i64, duration_nanos: i64) -> Profile {
        self.profile.time_nanos = time_nanos;
        self.profile.duration_nanos = duration_nanos;
        self.profile
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(place) = self.texts.get(text) {
            return *place;
        }
        let place = i64::try_from(self.profile.string_table.len()).unwrap_or(i64::MAX);
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), place);
        place
    }

    fn location(&mut self, calls: Vec<Call>) -> u64 {
        if let Some(id) = self.locations.get(&calls) {
            return *id;
        }
        let line = calls
            .iter()
            .map(|call| Line {
                function_id: self.function(call),
                line: call.line.into(),
            })
            .collect();
        let id = self.locations.len() as u64 + 1;
        self.profile.location.push(Location { id, line });
        self.locations.insert(calls, id);
        id
    }

    fn function(&mut self, call: &Call) -> u64 {
        let (name, filename) = (self.text(&call.function), self.text(&call.file));
        let next = self.functions.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            self.profile.function.push(Function {
                id,
                name,
                system_name: name,
                filename,
            });
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(function: &str, line: u32) -> Vec<Call> {
        vec![Call {
            function: function.into(),
            file: "a.rs".into(),
            line,
        }]
    }

    #[test]
    fn what_is_shared_is_written_once_and_ids_start_at_one() {
        let mut builder = Builder::cpu(10);
        builder.add("proxy-0", vec![call("leaf", 1), call("root", 9)], 3);
        builder.add("proxy-1", vec![call("leaf", 2), call("root", 9)], 1);
        let profile = builder.finish(5, 7);
        assert_eq!(profile.function.len(), 2);
        assert_eq!(profile.location.len(), 3);
        assert!(profile.location.iter().all(|location| location.id > 0));
        assert_eq!(profile.sample[0].value, [3, 30]);
        assert_eq!(
            profile.sample[0].location_id[1],
            profile.sample[1].location_id[1]
        );
        assert_eq!(profile.string_table[0], "");
        let decoded = Profile::decode(&*profile.encode_to_vec()).unwrap();
        assert_eq!(decoded, profile);
    }

    #[test]
    fn bytes_are_those_of_the_public_schema() {
        let mut builder = Builder::cpu(10);
        builder.add("t", vec![call("f", 4)], 1);
        let bytes = builder.finish(0, 0).encode_to_vec();
        // Field 1, two value types of texts 1/2 and 3/4; field 2, a sample at location 1 with values 1 and 10.
        assert!(bytes.starts_with(&[
            0x0a, 4, 8, 1, 16, 2, 0x0a, 4, 8, 3, 16, 4, 0x12, 13, 0x0a, 1, 1, 0x12, 2, 1, 10, 0x1a,
            4, 8, 5, 16, 6
        ]));
    }
}
