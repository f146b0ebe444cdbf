// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

fn yaml(text: &str) -> Result<serde_json::Value, SyntaxError> {
    let documents = from_yaml(text)?;
    assert_eq!(documents.len(), 1, "{text}");
    Ok(crate::decode::decode(&documents[0]).unwrap())
}

#[test]
fn plain_scalars_are_resolved_by_the_core_schema() {
    for (text, expected) in [
        ("80", serde_json::json!(80)),
        ("-1", serde_json::json!(-1)),
        ("0x1F", serde_json::json!(31)),
        ("0o17", serde_json::json!(15)),
        ("1.5", serde_json::json!(1.5)),
        ("18446744073709551615", serde_json::json!(u64::MAX)),
        ("true", serde_json::json!(true)),
        ("yes", serde_json::json!("yes")),
        ("on", serde_json::json!("on")),
        ("~", serde_json::json!(null)),
        ("10.0.0.1", serde_json::json!("10.0.0.1")),
        ("inf", serde_json::json!("inf")),
        ("1e3", serde_json::json!(1000.0)),
        ("'80'", serde_json::json!("80")),
        ("\"true\"", serde_json::json!("true")),
        ("!!str 80", serde_json::json!("80")),
        ("10Mi", serde_json::json!("10Mi")),
        (
            "2026-01-02T03:04:05Z",
            serde_json::json!("2026-01-02T03:04:05Z"),
        ),
    ] {
        assert_eq!(yaml(&format!("[{text}]")).unwrap()[0], expected, "{text}");
    }
}

#[test]
fn anchors_and_merge_keys_are_expanded_and_own_entries_win() {
    let text = "base: &b {a: 1, b: 2}\nmerged:\n  <<: *b\n  b: 3\ncopy: *b\n";
    assert_eq!(
        yaml(text).unwrap(),
        serde_json::json!({"base": {"a": 1, "b": 2}, "merged": {"b": 3, "a": 1}, "copy": {"a": 1, "b": 2}})
    );
}

#[test]
fn aliases_cannot_blow_up() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let before = format!("*a{}", level - 1);
        text.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            [before.as_str(); 10].join(", ")
        ));
    }
    let error = from_yaml(&text).unwrap_err();
    assert!(error.reason.contains("aliases expand"), "{error:?}");
}

#[test]
fn nesting_is_bounded_in_both_formats_and_through_aliases() {
    let deep = "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1);
    assert!(from_yaml(&deep).is_err());
    assert!(from_json(&deep).unwrap_err().reason.contains("nested"));
    let fitting = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
    assert!(from_json(&fitting).is_ok());
    let half = "[".repeat(MAX_DEPTH / 2 + 1) + &"]".repeat(MAX_DEPTH / 2 + 1);
    let alias = "[".repeat(MAX_DEPTH / 2) + "*a" + &"]".repeat(MAX_DEPTH / 2);
    assert!(
        from_yaml(&format!("a: &a {half}\nb: {alias}\n"))
            .unwrap_err()
            .reason
            .contains("nested")
    );
}

#[test]
fn a_key_given_twice_is_refused_where_it_stands() {
    assert_eq!(
        from_yaml("a: 1\nb: 2\na: 3\n").unwrap_err(),
        SyntaxError {
            line: Some(3),
            reason: "key \"a\" is given twice".to_owned()
        }
    );
    assert!(
        from_json("{\"a\": 1, \"a\": 2}")
            .unwrap_err()
            .reason
            .contains("key \"a\" is given twice")
    );
}

#[test]
fn what_no_manifest_holds_is_refused() {
    for text in [
        "? [a, b]\n: 1\n",
        "a: !thing 1\n",
        "a: *nowhere\n",
        "a: &a [*a]\n",
        "a: [1\n",
        "<<: 1\n",
    ] {
        assert!(from_yaml(text).is_err(), "{text}");
    }
}

#[test]
fn json_lines_are_found_by_path() {
    let text = "{\n \"items\": [\n  {\"a\": 1},\n  {\"b\":\n    \"x\"}\n ]\n}";
    let path = [
        Step::Field("items".to_owned()),
        Step::Index(1),
        Step::Field("b".to_owned()),
    ];
    assert_eq!(json_line(text, &path), Some(5));
    assert_eq!(json_line(text, &path[..2]), Some(4));
    assert_eq!(json_line(text, &[Step::Field("nothing".to_owned())]), None);
}

proptest! {
    #[test]
    fn no_text_makes_the_readers_panic(text in any::<String>()) {
        let _yaml = from_yaml(&text);
        let _json = from_json(&text);
        let _line = json_line(&text, &[Step::Field("a".to_owned()), Step::Index(0)]);
    }

    #[test]
    fn no_yaml_like_text_makes_the_reader_panic(text in "[-a:&*!|>%{}\\[\\]\"'#?<\\n ,.0~]{0,80}") {
        let _yaml = from_yaml(&text);
    }

    #[test]
    fn json_reads_the_same_through_both_readers(numbers in prop::collection::vec(any::<i64>(), 0..5), text in "[ -~]{0,20}") {
        let json = serde_json::json!({"numbers": numbers, "text": text, "none": null, "nested": {"a": [true, false]}});
        let printed = serde_json::to_string_pretty(&json).unwrap();
        let through_yaml: serde_json::Value = crate::decode::decode(&from_yaml(&printed).unwrap()[0]).unwrap();
        let through_json: serde_json::Value = crate::decode::decode(&from_json(&printed).unwrap()).unwrap();
        prop_assert_eq!(through_yaml, through_json);
    }
}
