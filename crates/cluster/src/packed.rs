// SPDX-License-Identifier: Apache-2.0
//! An object as it is kept between its events: as JSON, which takes a fraction of the memory of the typed object with
//! its many fields that are empty.

use std::sync::Arc;

use xxhash_rust::xxh64::xxh64;

use crate::object::{Kind, Object, Resource as _, with_type};

/// An object that takes little memory. Clones share it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packed(Form);

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Json {
        kind: Kind,
        json: Arc<[u8]>,
    },
    /// Its JSON would not read back as the same object.
    Whole(Object),
}

/// Tells apart what objects say, without the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64, u64);

impl Packed {
    pub(crate) fn new(object: &Object) -> Self {
        let (kind, json) = (object.kind(), object.to_json());
        match read(kind, &json) {
            Ok(back) if back == *object => Self(Form::Json {
                kind,
                json: json.into(),
            }),
            _ => Self(Form::Whole(object.clone())),
        }
    }

    pub(crate) fn unpack(&self) -> Object {
        match &self.0 {
            Form::Json { kind, json } => {
                read(*kind, json).expect("broken invariant: it was read back when it was packed")
            }
            Form::Whole(object) => object.clone(),
        }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        match &self.0 {
            Form::Json { json, .. } => Fingerprint::of(json),
            Form::Whole(object) => Fingerprint::of(&object.to_json()),
        }
    }

    /// Whether both are clones of one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Form::Json { json: a, .. }, Form::Json { json: b, .. }) => Arc::ptr_eq(a, b),
            (Form::Whole(a), Form::Whole(b)) => a.is_same(b),
            _ => false,
        }
    }
}

impl Fingerprint {
    fn of(json: &[u8]) -> Self {
        Self(xxh64(json, 1), xxh64(json, 2))
    }
}

fn read(kind: Kind, json: &[u8]) -> Result<Object, serde_json::Error> {
    with_type!(kind, T => serde_json::from_slice::<T>(json).map(T::into_object))
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;
    use crate::parse::{Format, Item, parse};

    fn objects(yaml: &str) -> Vec<Object> {
        let items = parse(yaml, Format::Yaml)
            .into_iter()
            .map(|item| match item {
                Item::Object { object, .. } => object,
                Item::Finding(finding) => panic!("{finding:?}"),
            });
        items.collect()
    }

    #[track_caller]
    fn check(yaml: &str) {
        let [object] = &objects(yaml)[..] else {
            panic!("one object expected")
        };
        let packed = Packed::new(object);
        assert!(matches!(packed.0, Form::Json { .. }), "{packed:?}");
        assert_eq!(packed.unpack(), *object);
    }

    #[test]
    fn objects_come_back_as_they_were() {
        check(
            "{apiVersion: v1, kind: Pod, metadata: {name: a, creationTimestamp: '2026-01-02T03:04:05Z'},
              spec: {containers: [{name: c, ports: [{containerPort: 80}], resources: {limits: {cpu: 100m}},
                                   readinessProbe: {httpGet: {port: http}}}]},
              status: {podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: 'True'}]}}",
        );
        check(
            "{apiVersion: v1, kind: Service, metadata: {name: a},
              spec: {clusterIP: None, ports: [{port: 80, targetPort: http}, {port: 81, targetPort: 8080}]}}",
        );
        check(
            "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: a},
              spec: {action: SOMETHING, rules: [{from: [{source: {principals: [p], later: {x: [1, 2.5, null]}}}]}]}}",
        );
        check(
            "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: a},
              spec: {hosts: [h], resolution: STATIC, ports: [{number: 1, name: n, protocol: TCP}],
                     endpoints: [{address: 10.0.0.1, ports: {n: 2}}]}}",
        );
    }

    #[test]
    fn what_json_cannot_say_is_kept_whole() {
        let policy =
            "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: a},
              spec: {provider: {name: x}}}";
        let [Object::AuthorizationPolicy(policy)] = &objects(policy)[..] else {
            panic!("a policy expected")
        };
        let mut policy = policy.as_ref().clone();
        policy.spec.provider = Some(serde_json::Value::Null);
        let object = policy.into_object();
        let packed = Packed::new(&object);
        assert!(matches!(packed.0, Form::Whole(_)));
        assert_eq!(packed.unpack(), object);
        assert!(packed.is_same(&packed.clone()));
    }

    #[test]
    fn fingerprints_differ_with_the_content_alone() {
        let print = |yaml: &str| Packed::new(&objects(yaml)[0]).fingerprint();
        let one = "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {v: '1'}}}";
        assert_eq!(print(one), print(&one.replace(", ", ",\n ")));
        assert_ne!(print(one), print(&one.replace("'1'", "'2'")));
    }

    #[test]
    fn a_packed_object_is_small() {
        assert!(size_of::<Packed>() <= 24);
    }
}
