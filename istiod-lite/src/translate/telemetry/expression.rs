// SPDX-License-Identifier: Apache-2.0
//! Expressions of filters: a part of the Common Expression Language, parsed here so that a waypoint only evaluates.
//!
//! ```text
//! any  = all ("||" all)*            all  = test ("&&" test)*
//! test = sum (("==" | "!=" | "<" | "<=" | ">" | ">=" | "in") sum)?
//! sum  = "!" sum | "(" any ")" | "[" sum,* "]" | literal | has(operand) | string(any) | operand ("." method "(" sum ")")?
//! ```
//!
//! What is outside of it is refused by name: arithmetic, conditionals, macros, and attributes that a waypoint doesn't know.

use proto::waypoint::{self as wire, Known, Operation, expression::Kind};

use crate::translate::route;

/// Characters of an expression.
const LONGEST: usize = 4096;
/// Parentheses and negations within each other. Each may come to four calls, each call to two messages, and whoever reads
/// messages takes no more than a hundred within each other.
const DEEPEST: usize = 10;

/// Reads an expression that says yes or no.
///
/// # Errors
/// Says what is not understood, and where.
pub(super) fn filter(text: &str) -> Result<wire::Expression, String> {
    let read = parse(text)?;
    match Type::of(&read) {
        Type::Truth => Ok(read),
        other => Err(format!("says {}, not yes or no", other.words())),
    }
}

/// Reads an expression that says anything.
///
/// # Errors
/// Says what is not understood, and where.
pub(super) fn parse(text: &str) -> Result<wire::Expression, String> {
    if text.len() > LONGEST {
        return Err(format!("is longer than {LONGEST} characters"));
    }
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
    };
    let read = parser.any()?;
    parser.space();
    match parser.rest() {
        "" => Ok(read),
        rest => Err(parser.here(&format!("{:?} is not understood", brief(rest)))),
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

const COMPARISONS: [(&str, Operation); 6] = [
    ("==", Operation::Equal),
    ("!=", Operation::Unequal),
    ("<=", Operation::AtMost),
    (">=", Operation::AtLeast),
    ("<", Operation::Less),
    (">", Operation::Greater),
];

const METHODS: [(&str, Operation); 4] = [
    ("startsWith", Operation::StartsWith),
    ("endsWith", Operation::EndsWith),
    ("contains", Operation::Contains),
    ("matches", Operation::Matches),
];

const OPERANDS: [(&str, Known); 22] = [
    ("request.path", Known::RequestPath),
    ("request.url_path", Known::RequestUrlPath),
    ("request.query", Known::RequestQuery),
    ("request.host", Known::RequestAuthority),
    ("request.scheme", Known::RequestScheme),
    ("request.method", Known::RequestMethod),
    ("request.protocol", Known::RequestVersion),
    ("request.id", Known::RequestId),
    ("request.useragent", Known::RequestUserAgent),
    ("request.size", Known::RequestSize),
    ("request.total_size", Known::RequestSize),
    ("response.code", Known::ResponseCode),
    ("response.grpc_status", Known::ResponseGrpcStatus),
    ("response.size", Known::ResponseSize),
    ("response.total_size", Known::ResponseSize),
    ("response.code_details", Known::ResponseCodeDetails),
    ("connection.mtls", Known::ConnectionMtls),
    ("connection.uri_san_peer_certificate", Known::SourceIdentity),
    ("source.address", Known::SourceAddress),
    ("source.port", Known::SourcePort),
    ("destination.port", Known::AskedPort),
    ("upstream.address", Known::UpstreamAddress),
];

const HEADERS: [(&str, Known); 2] = [
    ("request.headers", Known::AnyRequestHeader),
    ("response.headers", Known::AnyResponseHeader),
];

/// What an expression says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Text,
    Number,
    Truth,
}

impl Type {
    fn of(expression: &wire::Expression) -> Self {
        match &expression.kind {
            Some(Kind::Text(_)) | None => Self::Text,
            Some(Kind::Number(_)) => Self::Number,
            Some(Kind::Truth(_)) => Self::Truth,
            Some(Kind::Operand(operand)) => match operand.known() {
                Known::ConnectionMtls => Self::Truth,
                Known::RequestSize
                | Known::ResponseCode
                | Known::ResponseGrpcStatus
                | Known::ResponseSize
                | Known::SourcePort
                | Known::AskedPort => Self::Number,
                _ => Self::Text,
            },
            Some(Kind::Call(call)) => match call.operation() {
                Operation::ToText => Self::Text,
                _ => Self::Truth,
            },
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Number => "a number",
            Self::Truth => "yes or no",
        }
    }
}

impl Parser<'_> {
    fn any(&mut self) -> Result<wire::Expression, String> {
        self.several("||", Operation::Or, Self::all)
    }

    fn all(&mut self) -> Result<wire::Expression, String> {
        self.several("&&", Operation::And, Self::test)
    }

    fn several(
        &mut self,
        sign: &str,
        operation: Operation,
        one: impl Fn(&mut Self) -> Result<wire::Expression, String>,
    ) -> Result<wire::Expression, String> {
        let first = one(self)?;
        let mut arguments = vec![first];
        while self.take(sign) {
            arguments.push(one(self)?);
        }
        match arguments.len() {
            1 => Ok(arguments.swap_remove(0)),
            _ => self.call(operation, arguments),
        }
    }

    fn test(&mut self) -> Result<wire::Expression, String> {
        let left = self.unary()?;
        self.space();
        if self.rest().starts_with("in ") || self.rest().starts_with("in[") {
            self.at += 2;
            return self.one_of(left);
        }
        for (sign, operation) in COMPARISONS {
            if self.take(sign) {
                let right = self.unary()?;
                return self.call(operation, vec![left, right]);
            }
        }
        Ok(left)
    }

    fn one_of(&mut self, left: wire::Expression) -> Result<wire::Expression, String> {
        if !self.take("[") {
            // Whether there is such a header.
            let Some(Kind::Text(name)) = &left.kind else {
                return Err(self.here("a list is expected behind \"in\""));
            };
            let name = name.to_ascii_lowercase();
            let word = self.word();
            let headers = HEADERS.iter().find(|(own, _)| *own == word);
            let (_, known) = headers
                .ok_or_else(|| self.here(&format!("{word:?} is not understood behind \"in\"")))?;
            return self.call(Operation::Has, vec![operand(*known, name)]);
        }
        let mut arguments = vec![left];
        while !self.take("]") {
            arguments.push(self.unary()?);
            if !self.take(",") && !self.rest().trim_start().starts_with(']') {
                return Err(self.here("\",\" or \"]\" is expected"));
            }
        }
        self.call(Operation::OneOf, arguments)
    }

    /// What is of the wrong type could never hold: better told than never seen.
    fn call(
        &self,
        operation: Operation,
        arguments: Vec<wire::Expression>,
    ) -> Result<wire::Expression, String> {
        let first = arguments.first().map_or(Type::Text, Type::of);
        let expected = match operation {
            Operation::And | Operation::Or | Operation::Not => Type::Truth,
            Operation::StartsWith
            | Operation::EndsWith
            | Operation::Contains
            | Operation::Matches => Type::Text,
            Operation::Has | Operation::ToText => {
                return Ok(call(operation, arguments));
            }
            _ => first,
        };
        let odd = arguments.iter().map(Type::of).find(|of| *of != expected);
        match odd {
            None => Ok(call(operation, arguments)),
            Some(odd) => {
                let (odd, expected) = (odd.words(), expected.words());
                Err(self.here(&format!("{odd} stands where {expected} is expected")))
            }
        }
    }

    fn unary(&mut self) -> Result<wire::Expression, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("is nested deeper than {DEEPEST}"));
        }
        let read = self.unary_within();
        self.depth -= 1;
        read
    }

    fn unary_within(&mut self) -> Result<wire::Expression, String> {
        self.space();
        if !self.rest().starts_with("!=") && self.take("!") {
            let within = self.unary()?;
            return self.call(Operation::Not, vec![within]);
        }
        if self.take("(") {
            let within = self.any()?;
            return match self.take(")") {
                true => Ok(within),
                false => Err(self.here("\")\" is expected")),
            };
        }
        match self.rest().chars().next() {
            Some('"' | '\'') => self.text().map(|text| kind(Kind::Text(text))),
            Some('0'..='9' | '-') => self.number(),
            _ => self.named(),
        }
    }

    fn named(&mut self) -> Result<wire::Expression, String> {
        let start = self.at;
        let word = self.word();
        match word.as_str() {
            "" => return Err(self.here(&format!("{:?} is not understood", brief(self.rest())))),
            "true" | "false" => return Ok(kind(Kind::Truth(word == "true"))),
            "has" if self.take("(") => {
                let name = self.word();
                let operand = self.operand(&name)?;
                return match self.take(")") {
                    true => Ok(call(Operation::Has, vec![operand])),
                    false => Err(self.here("\")\" is expected")),
                };
            }
            "string" if self.take("(") => {
                let within = self.any()?;
                return match self.take(")") {
                    true => Ok(call(Operation::ToText, vec![within])),
                    false => Err(self.here("\")\" is expected")),
                };
            }
            _ => {}
        }
        let method = METHODS.iter().find_map(|(method, operation)| {
            let subject = word.strip_suffix(method)?.strip_suffix('.')?;
            Some((subject.to_owned(), *operation))
        });
        let (name, operation) =
            method.map_or((word, None), |(name, operation)| (name, Some(operation)));
        self.at = start + name.len();
        let subject = self.operand(&name)?;
        let operation = operation.or_else(|| {
            // Behind a header's name in brackets.
            METHODS.iter().find_map(|(method, operation)| {
                self.rest().strip_prefix('.')?.strip_prefix(method)?;
                Some(*operation)
            })
        });
        let Some(operation) = operation else {
            return Ok(subject);
        };
        self.take(".");
        self.word();
        if !self.take("(") {
            return Err(self.here("\"(\" is expected"));
        }
        let argument = self.unary()?;
        if !self.take(")") {
            return Err(self.here("\")\" is expected"));
        }
        if operation == Operation::Matches {
            let Some(Kind::Text(expression)) = &argument.kind else {
                return Err(self.here("matches() takes a text"));
            };
            route::expression(expression).map_err(|error| self.here(&error))?;
        }
        self.call(operation, vec![subject, argument])
    }

    /// An attribute, with the header's name in brackets behind it if it has headers.
    fn operand(&mut self, name: &str) -> Result<wire::Expression, String> {
        if let Some(known) = OPERANDS.iter().find(|(own, _)| *own == name) {
            return Ok(operand(known.1, String::new()));
        }
        let header = HEADERS.iter().find_map(|(own, known)| {
            let rest = name.strip_prefix(own)?;
            (rest.is_empty() || rest.starts_with('.')).then_some((rest, *known))
        });
        let (rest, known) = header.ok_or_else(|| self.here(&format!("{name:?} is not known")))?;
        if let Some(short) = rest.strip_prefix('.') {
            return Ok(operand(known, short.to_ascii_lowercase()));
        }
        if !self.take("[") {
            return Err(self.here(&format!("{name} needs a name in brackets")));
        }
        self.space();
        let key = self.text()?;
        match self.take("]") {
            true => Ok(operand(known, key.to_ascii_lowercase())),
            false => Err(self.here("\"]\" is expected")),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let mut characters = self.rest().char_indices();
        let quote = characters.next().map(|(_, quote)| quote);
        let quote = quote.filter(|quote| matches!(quote, '"' | '\''));
        let quote = quote.ok_or_else(|| self.here("a text in quotes is expected"))?;
        let mut text = String::new();
        while let Some((at, character)) = characters.next() {
            match character {
                end if end == quote => {
                    self.at += at + 1;
                    return Ok(text);
                }
                '\\' => match characters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, one @ ('\\' | '"' | '\''))) => text.push(one),
                    _ => return Err(self.here("an escape is not understood")),
                },
                other => text.push(other),
            }
        }
        Err(self.here("a text does not end"))
    }

    fn number(&mut self) -> Result<wire::Expression, String> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-');
        let length = self
            .rest()
            .find(|c| !is_part(c))
            .unwrap_or(self.rest().len());
        let text = &self.rest()[..length];
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        let number = number.ok_or_else(|| self.here(&format!("{text:?} is no number")))?;
        self.at += length;
        Ok(kind(Kind::Number(number)))
    }

    fn word(&mut self) -> String {
        self.space();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let length = self
            .rest()
            .find(|c| !is_part(c))
            .unwrap_or(self.rest().len());
        let word = self.rest()[..length].to_owned();
        self.at += length;
        word
    }

    fn take(&mut self, sign: &str) -> bool {
        self.space();
        let is_there = self.rest().starts_with(sign);
        if is_there {
            self.at += sign.len();
        }
        is_there
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn here(&self, words: &str) -> String {
        format!("at character {}: {words}", self.at + 1)
    }
}

fn brief(text: &str) -> &str {
    let end = text.char_indices().nth(20).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

fn kind(kind: Kind) -> wire::Expression {
    wire::Expression { kind: Some(kind) }
}

fn call(operation: Operation, arguments: Vec<wire::Expression>) -> wire::Expression {
    kind(Kind::Call(wire::Call {
        operation: operation.into(),
        arguments,
    }))
}

fn operand(known: Known, key: String) -> wire::Expression {
    kind(Kind::Operand(wire::Operand {
        known: known.into(),
        key,
    }))
}

/// As it is shown, with all its parentheses.
pub(crate) fn describe(expression: &wire::Expression) -> String {
    match &expression.kind {
        Some(Kind::Operand(operand)) => {
            let key = Some(&operand.key).filter(|key| !key.is_empty());
            let key = key.map_or_else(String::new, |key| format!("[{key}]"));
            format!("{}{key}", operand.known().as_str_name())
        }
        Some(Kind::Text(text)) => format!("{text:?}"),
        Some(Kind::Number(number)) => number.to_string(),
        Some(Kind::Truth(truth)) => truth.to_string(),
        Some(Kind::Call(call)) => {
            let arguments: Vec<_> = call.arguments.iter().map(describe).collect();
            format!(
                "{}({})",
                call.operation().as_str_name(),
                arguments.join(", ")
            )
        }
        None => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    #[test]
    fn what_is_understood_of_the_language() {
        let check = |text: &str, expected: &str| {
            let read = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(describe(&read), expected, "{text}");
        };
        check("response.code >= 400", "AT_LEAST(RESPONSE_CODE, 400)");
        check(
            "response.code>=500 || request.method != 'GET' && !connection.mtls",
            "OR(AT_LEAST(RESPONSE_CODE, 500), AND(UNEQUAL(REQUEST_METHOD, \"GET\"), NOT(CONNECTION_MTLS)))",
        );
        check(
            "!(request.path.startsWith(\"/healthz\"))",
            "NOT(STARTS_WITH(REQUEST_PATH, \"/healthz\"))",
        );
        check(
            "request.headers['X-User'] == \"a\\\"b\" && request.headers[\"x\"].matches('^a+$')",
            "AND(EQUAL(ANY_REQUEST_HEADER[x-user], \"a\\\"b\"), MATCHES(ANY_REQUEST_HEADER[x], \"^a+$\"))",
        );
        check(
            "has(request.headers.cookie)",
            "HAS(ANY_REQUEST_HEADER[cookie])",
        );
        check(
            "'cookie' in request.headers",
            "HAS(ANY_REQUEST_HEADER[cookie])",
        );
        check(
            "request.host.contains('shop')",
            "CONTAINS(REQUEST_AUTHORITY, \"shop\")",
        );
        check(
            "response.code in [200, 201]",
            "ONE_OF(RESPONSE_CODE, 200, 201)",
        );
        check("'x-a' in response.headers", "HAS(ANY_RESPONSE_HEADER[x-a])");
        check("string(destination.port)", "TO_TEXT(ASKED_PORT)");
        check(" true ", "true");
        check("1.5 < request.size", "LESS(1.5, REQUEST_SIZE)");
    }

    #[test]
    fn what_is_not_is_named_with_its_place() {
        let check = |text: &str, words: &str| {
            let error = parse(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        };
        check("", "at character 1: \"\" is not understood");
        check("response.code + 1 > 2", "\"+ 1 > 2\" is not understood");
        check(
            "xds.cluster_name == 'a'",
            "\"xds.cluster_name\" is not known",
        );
        check("request.headers == 'a'", "needs a name in brackets");
        check("(true", "\")\" is expected");
        check("request.path == 'a", "a text does not end");
        check("request.path.matches('(')", "at character");
        check("request.path.size() > 1", "is not known");
        check("response.code in 5", "behind \"in\"");
        check(&"(".repeat(40), "is nested deeper than 10");
        check(&"a".repeat(5000), "is longer than 4096");
        check("response.code = 5", "\"= 5\" is not understood");
        check(
            "response.code == '5'",
            "a text stands where a number is expected",
        );
        check("!request.path", "a text stands where yes or no is expected");
        check(
            "response.code in [1, '2']",
            "a text stands where a number is expected",
        );
        let not_a_filter = filter("response.code").expect_err("a number");
        assert_eq!(not_a_filter, "says a number, not yes or no");
    }

    #[test]
    fn the_deepest_one_can_be_read_by_a_waypoint() {
        let mut text = "request.path == 'a'".to_owned();
        for _ in 1..DEEPEST {
            text = format!("string({text} && true || false) == 'a'");
        }
        assert!(parse(&format!("!({text})")).is_err());
        let change = wire::MetricOverride {
            tags: [("t".to_owned(), parse(&text).expect("deep"))].into(),
            ..wire::MetricOverride::default()
        };
        let service = wire::Service {
            telemetry: Some(wire::Telemetry {
                metrics: vec![change],
                ..wire::Telemetry::default()
            }),
            ..wire::Service::default()
        };
        assert_eq!(
            wire::Service::decode(&*service.encode_to_vec()),
            Ok(service)
        );
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn nor_is_one_of_its_own_words(words in prop::collection::vec(prop::sample::select(vec![
            "request.path", ".matches", "(", ")", "'a'", "!", "&&", "||", "==", "in", "[", "]", "1", "has", "é", ".", "request.headers",
        ]), 0..20)) {
            let _ = parse(&words.join(" "));
            let _ = parse(&words.concat());
        }
    }
}
