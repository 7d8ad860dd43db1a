//! Bytes that no scheduler would send. Nothing panics, and nothing outside the names that were sent is answered.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

mod support;

use proptest::prelude::*;
use serde_json::{Value, json};
use support::*;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Keys that the extender reads, in Go's spelling and others, and some that it does not.
fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "Pod",
        "pod",
        "POD",
        "Nodes",
        "NodeNames",
        "nodenames",
        "PodName",
        "PodUID",
        "PodNamespace",
        "Node",
        "metadata",
        "labels",
        "ownerReferences",
        "items",
        "name",
        "uid",
        "spec",
        "nodeName",
        "andreas.dev/job-uid",
        "x",
    ])
    .prop_map(str::to_owned)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..256)) {
        runtime().block_on(async {
            let bench = bench(Api::binds(), [allocated(7, 1, &["a"])]);
            for path in ["/filter", "/prioritize", "/bind"] {
                let (status, _) = bench.post(path, body.clone()).await;
                prop_assert!(status.as_u16() == 200 || status.as_u16() == 400, "{status}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn any_json_is_answered(body in any_json()) {
        runtime().block_on(async {
            let bench = bench(Api::binds(), [allocated(7, 1, &["a"])]);
            for path in ["/filter", "/prioritize", "/bind"] {
                let (status, _) = bench.post(path, body.to_string()).await;
                prop_assert!(status.as_u16() == 200 || status.as_u16() == 400, "{status}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn only_names_that_were_sent_are_answered_and_a_member_gets_its_own_node_or_none(
        sent in prop::collection::btree_set(prop::sample::select(vec!["a", "b", "c", "d"]), 0..4),
        nodes in prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..3),
        index in 0_usize..4, attempt in 1_i64..3, generation in 6_i64..9, foreign in any::<bool>(),
    ) {
        let sent: Vec<&str> = sent.into_iter().collect();
        let pod = if foreign { foreign_pod() } else { member_pod(index, attempt, generation) };
        let answer = runtime().block_on(async {
            bench(Api::binds(), [allocated(7, 1, &nodes)]).ask("/filter", &json!({"Pod": pod, "NodeNames": sent})).await
        });
        let named: Vec<&str> = answer["NodeNames"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        prop_assert!(named.iter().all(|name| sent.contains(name)), "{answer}");
        let place = (attempt == 1 && generation == 7).then(|| nodes.get(index)).flatten();
        match place {
            _ if foreign => prop_assert_eq!(&named, &sent),
            Some(node) if sent.contains(node) => prop_assert_eq!(&named, &vec![*node]),
            _ => prop_assert!(named.is_empty(), "{answer}"),
        }
    }
}
