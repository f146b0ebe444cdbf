// SPDX-License-Identifier: Apache-2.0
//! Types that can say what their objects look like, so that their CustomResourceDefinitions follow from them
//! (`definitions`, in tests: the result lies in `deploy/base`).

/// Declares structs as they are written, and describes each by the names and types of its fields. A field is called on the
/// wire what it is called here, in camel case.
macro_rules! described {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $( $(#[$field_attribute:meta])* pub $field:ident: $type:ty, )*
        }
    )+) => { $(
        $(#[$attribute])*
        pub struct $name {
            $( $(#[$field_attribute])* pub $field: $type, )*
        }

        #[cfg(test)]
        impl $crate::kinds::described::Described for $name {
            fn schema() -> serde_json::Value {
                $crate::kinds::described::object([
                    $( (stringify!($field), <$type as $crate::kinds::described::Described>::schema()), )*
                ])
            }
        }
    )+ };
}

pub(crate) use described;

#[cfg(test)]
pub(crate) use schema::{Described, object};

#[cfg(test)]
mod schema {
    use std::collections::BTreeMap;

    use serde_json::{Map, Value, json};

    /// Says by a schema of OpenAPI what a value looks like.
    pub(crate) trait Described {
        fn schema() -> Value;
    }

    /// An object with these fields. Others are kept: a server that drops a misspelt one would change what an object means.
    pub(crate) fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
        let fields = fields.into_iter();
        let known = fields.filter(|(name, _)| *name != "unknown_fields");
        let properties: Map<String, Value> =
            known.map(|(name, of)| (camel_case(name), of)).collect();
        json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties,
        })
    }

    fn camel_case(name: &str) -> String {
        let mut words = name.trim_start_matches("r#").split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |mut name, word| {
            let (head, rest) = word.split_at(1);
            name.push_str(&head.to_ascii_uppercase());
            name.push_str(rest);
            name
        })
    }

    macro_rules! plain {
        ($( $type:ty => $schema:tt, )+) => {
            $( impl Described for $type {
                fn schema() -> Value {
                    json!($schema)
                }
            } )+
        };
    }

    plain! {
        String => {"type": "string"},
        bool => {"type": "boolean"},
        // Servers tell them apart by their range alone; what is no such number is told in the object's status.
        i64 => {"type": "integer"},
        u32 => {"type": "integer", "minimum": 0, "maximum": 4294967295u32},
        f64 => {"type": "number"},
        // Anything at all.
        Value => {"x-kubernetes-preserve-unknown-fields": true},
    }

    impl<T: Described> Described for Option<T> {
        fn schema() -> Value {
            T::schema()
        }
    }

    impl<T: Described> Described for Vec<T> {
        fn schema() -> Value {
            json!({ "type": "array", "items": T::schema() })
        }
    }

    impl<K, T: Described> Described for BTreeMap<K, T> {
        fn schema() -> Value {
            json!({ "type": "object", "additionalProperties": T::schema() })
        }
    }
}
