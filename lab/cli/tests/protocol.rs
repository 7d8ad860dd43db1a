//! The line protocol as a client sees it.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use andreas_baselines::{Method, Options};
use andreas_lab::stdio::{Session, serve};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

fn session(explain: bool) -> Session {
    Session::new(Options { method: Method::Edf, trials: 20, ..Options::default() }, explain)
}

fn ask(session: &mut Session, line: &Value) -> Value {
    serde_json::from_str(&session.answer(line.to_string().as_bytes())).unwrap()
}

fn bert() -> Value {
    json!({"id": "bert", "submit_s": 0, "deadline_s": 9000, "weight": 0.001, "epochs_left": 10, "req_gpus": 2,
           "allowed": [1, 2], "epoch_s": {"V100": [600, 330, 250], "T4": [1500, 800]},
           "power_w": {"V100": [250, 480, 700], "T4": [70, 140]}})
}

/// Two nodes of 2 V100s, one of 4 T4s, one job that has just come.
fn state() -> Value {
    json!({"version": 1, "now": 100, "horizon_s": 300, "eur_per_kwh": 0.2, "pue": 1.3, "restart_s": 60,
           "gpu_types": [{"name": "V100", "idle_w": 30, "max_w": 300}, {"name": "T4", "idle_w": 10, "max_w": 70}],
           "classes": [{"gpu_type": "V100", "gpus": 2, "count": 2, "overhead_w": 200},
                       {"gpu_type": "T4", "gpus": 4, "count": 1, "overhead_w": 100}],
           "new_jobs": [bert()],
           "jobs": [{"id": "bert", "epochs_left": 10, "current": null}]})
}

#[test]
fn tables_are_kept_and_a_finished_job_is_forgotten() {
    // Given a job that was introduced by the first line,
    let mut session = session(false);
    let first = ask(&mut session, &state());
    let place = first["bert"].clone();
    assert!(place["node"].is_string() && place["gpus"].is_u64(), "{first}");

    // when it comes back without its table, it goes on where it is;
    let mut later = state();
    later["now"] = json!(400);
    later["new_jobs"] = json!([]);
    later["jobs"] = json!([{"id": "bert", "epochs_left": 8.5, "current": place}]);
    assert_eq!(ask(&mut session, &later), first);

    // when it is gone and comes back, nobody knows it.
    let mut empty = later.clone();
    empty["jobs"] = json!([]);
    assert_eq!(ask(&mut session, &empty), json!({}));
    let answer = ask(&mut session, &later);
    assert!(answer["_error"].as_str().unwrap().starts_with("jobs[0].id: \"bert\" is not known"), "{answer}");
}

#[test]
fn a_gang_by_necessity_is_answered_with_its_nodes() {
    let mut line = state();
    line["new_jobs"][0]["allowed"] = json!([4]);
    line["new_jobs"][0]["epoch_s"] = json!({"V100": [null, null, null, 200]});
    line["new_jobs"][0]["power_w"] = json!({"V100": [null, null, null, 900]});
    line["new_jobs"][0]["spread"] = json!({"2": 1.1});

    let mut session = session(false);
    let answer = ask(&mut session, &line);
    assert_eq!(answer, json!({"bert": {"nodes": ["0/0", "0/1"], "gpus": 2}}));

    // It is understood as `current` as well.
    line["new_jobs"] = json!([]);
    line["jobs"][0]["current"] = answer["bert"].clone();
    assert_eq!(ask(&mut session, &line), answer);
}

/// A late job on slow GPUs, and a free fast GPU with a power limit that saves energy.
fn late_on_slow_gpus() -> Value {
    json!({"now": 1000, "eur_per_kwh": 0.26, "restart_s": 120, "turnaround_share": 0.1, "late_fixed_s": 900,
        "gpu_types": [{"name": "F", "idle_w": 50, "max_w": 400}, {"name": "S", "idle_w": 10, "max_w": 100}],
        "classes": [{"gpu_type": "F", "gpus": 1, "count": 1, "overhead_w": 100},
                    {"gpu_type": "S", "gpus": 1, "count": 1, "overhead_w": 100}],
        "new_jobs": [{"id": "j", "submit_s": 0, "deadline_s": 1, "weight": 0.0001, "epochs_left": 600, "req_gpus": 1,
                      "allowed": [1], "epoch_s": {"F": [700], "S": [1350]}, "power_w": {"F": [400], "S": [100]},
                      "limits": {"F": [[280, 1.045, 0.7]]}}],
        "jobs": [{"id": "j", "epochs_left": 600, "current": {"node": "1/0", "gpus": 1}}]})
}

#[test]
fn a_job_on_slow_gpus_moves_to_free_fast_ones_whatever_limits_they_offer() {
    // It moves now; postponed, the same move would be postponed again at every decision.
    let mut session = Session::new(Options { trials: 20, ..Options::default() }, true);
    let answer = ask(&mut session, &late_on_slow_gpus());
    assert_eq!(answer["j"]["node"], "0/0", "{answer}");
    assert!(answer["_plan"]["gap"].as_f64().unwrap() < 1e-6, "{answer}");
}

#[test]
fn the_nodes_of_a_gang_are_of_one_class() {
    // Given two classes of one GPU type with two nodes each, one node of each in use, and a gang of two nodes,
    let mut line = state();
    line["classes"] =
        json!([{"gpu_type": "V100", "gpus": 2, "count": 2}, {"gpu_type": "V100", "gpus": 2, "count": 2}]);
    line["new_jobs"][0]["allowed"] = json!([4]);
    line["new_jobs"][0]["epoch_s"] = json!({"V100": [null, null, null, 200]});
    line["new_jobs"][0]["power_w"] = json!({"V100": [null, null, null, 900]});
    line["new_jobs"][0]["spread"] = json!({"2": 1.1});
    line["new_jobs"][0]["req_gpus"] = json!(4);
    let small = |id: &str| {
        json!({"id": id, "submit_s": 0, "weight": 0.001, "epochs_left": 10, "movable": false, "allowed": [2], "req_gpus": 2,
               "epoch_s": {"V100": [null, 600]}, "power_w": {"V100": [null, 400]}})
    };
    line["new_jobs"].as_array_mut().unwrap().extend([small("a"), small("b")]);
    let there =
        |id: &str, node: &str| json!({"id": id, "epochs_left": 10, "current": {"node": node, "gpus": 2}});
    line["jobs"].as_array_mut().unwrap().extend([there("a", "0/0"), there("b", "1/0")]);
    for method in [Method::RandomizedGreedy, Method::Edf, Method::AndreasLs, Method::Gavel] {
        // then it waits rather than span both,
        let mut session = Session::new(Options { method, trials: 20, ..Options::default() }, false);
        assert_eq!(ask(&mut session, &line)["bert"], Value::Null, "{method:?}");
        // and starts where one class has two nodes free.
        let mut free = line.clone();
        free["jobs"][2]["current"] = json!({"node": "0/1", "gpus": 2});
        let nodes = json!(["1/0", "1/1"]);
        assert_eq!(ask(&mut session, &free)["bert"]["nodes"], nodes, "{method:?}");
    }
}

/// Two jobs of four GPUs each, and this many nodes of four. Both wait.
fn two_of_four_gpus(nodes: u32) -> Value {
    let four = |id: &str| {
        json!({"id": id, "submit_s": 0, "deadline_s": 9000, "weight": 0.001, "epochs_left": 10, "allowed": [4], "req_gpus": 4,
               "epoch_s": {"V100": [null, null, null, 600]}, "power_w": {"V100": [null, null, null, 900]}})
    };
    let mut line = state();
    line["classes"] = json!([{"gpu_type": "V100", "gpus": 4, "count": nodes}]);
    line["new_jobs"] = json!([four("a"), four("b")]);
    line["jobs"] = json!([{"id": "a", "epochs_left": 10}, {"id": "b", "epochs_left": 10}]);
    line
}

#[test]
fn what_a_starting_job_still_holds_is_given_to_nobody() {
    // Given a job that goes from one node to the other, and one that waits,
    let on = |node: &str| json!({"node": node, "gpus": 4});
    let mut moves = two_of_four_gpus(2);
    moves["jobs"][0] =
        json!({"id": "a", "epochs_left": 10, "state": "starting", "current": on("0/0"), "target": on("0/1")});
    // and the same when it has left.
    let mut left = moves.clone();
    left["jobs"][0]["current"] = Value::Null;
    for method in [Method::RandomizedGreedy, Method::Edf, Method::Gavel] {
        let other = |line: &Value| {
            let mut session = Session::new(Options { method, trials: 20, ..Options::default() }, false);
            ask(&mut session, line)["b"].clone()
        };
        assert_eq!((other(&moves), other(&left)), (Value::Null, on("0/0")), "{method:?}");
    }
}

#[test]
fn what_a_job_does_and_what_a_change_costs_it_may_be_in_new_jobs() {
    // Given a job that leaves the only node,
    let leaves = json!({"state": "stopping", "current": {"node": "0/0", "gpus": 4}, "gone_by_s": 500});
    let answer = |list: &str| {
        let mut line = two_of_four_gpus(1);
        line[list][0].as_object_mut().unwrap().extend(leaves.as_object().unwrap().clone());
        ask(&mut session(false), &line)
    };
    // then the other one waits, wherever that is said.
    assert_eq!(answer("new_jobs")["b"], Value::Null);
    assert_eq!(answer("new_jobs"), answer("jobs"));

    // Given a job for which a change costs more than it gains, then it stays, on later lines too.
    let mut session = Session::new(Options { trials: 20, ..Options::default() }, false);
    let mut line = late_on_slow_gpus();
    line["new_jobs"][0]["restart_s"] = json!(1e6);
    assert_eq!(ask(&mut session, &line)["j"]["node"], "1/0");
    line["new_jobs"] = json!([]);
    assert_eq!(ask(&mut session, &line)["j"]["node"], "1/0");
}

#[test]
fn what_a_job_does_is_read_from_one_list() {
    // Given a job that waited when it was introduced, and runs on the same line's `jobs`,
    let answer = |said: Value| {
        let mut line = two_of_four_gpus(1);
        line["jobs"][0]["current"] = json!({"node": "0/0", "gpus": 4});
        line["new_jobs"][0].as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        ask(&mut session(false), &line)
    };
    let runs = answer(json!({}));
    assert_eq!(runs["a"], json!({"node": "0/0", "gpus": 4}));
    // then it runs, also where it was about to leave.
    for said in [json!({"state": "waiting"}), json!({"state": "stopping", "gone_by_s": 500})] {
        assert_eq!(answer(said.clone()), runs, "{said}");
    }
}

#[test]
fn a_job_without_gpus_that_is_introduced_with_some_holds_none() {
    // Given two jobs for the only node: a held it and may not be moved, b is far dearer,
    let answer = |current: Option<Value>| {
        let mut line = two_of_four_gpus(1);
        line["new_jobs"][0]["current"] = json!({"node": "0/0", "gpus": 4});
        line["new_jobs"][0]["movable"] = json!(false);
        line["new_jobs"][1]["weight"] = json!(1.0);
        line["jobs"][0].as_object_mut().unwrap().extend(current.map(|value| ("current".to_owned(), value)));
        let options = Options { method: Method::RandomizedGreedy, trials: 20, ..Options::default() };
        ask(&mut Session::new(options, false), &line)
    };
    let on = json!({"node": "0/0", "gpus": 4});
    // when it is listed with null, then it was stopped; else it goes on.
    assert_eq!(answer(Some(Value::Null)), json!({"a": null, "b": on}));
    assert_eq!(answer(None), json!({"a": on, "b": null}));
}

#[test]
fn a_job_that_is_introduced_as_starting_holds_nothing_yet_and_null_says_the_same() {
    // Given two jobs for the only node, on which a starts; b is far dearer,
    let mut line = two_of_four_gpus(1);
    let on = json!({"node": "0/0", "gpus": 4});
    line["new_jobs"][0]["state"] = json!("starting");
    line["new_jobs"][0]["target"] = on.clone();
    line["new_jobs"][0]["movable"] = json!(false);
    line["new_jobs"][1]["weight"] = json!(1.0);
    // when a client writes every key, then a starts as where it writes none.
    for current in [None, Some(Value::Null)] {
        line["jobs"][0].as_object_mut().unwrap().extend(current.map(|value| ("current".to_owned(), value)));
        let options = Options { method: Method::RandomizedGreedy, trials: 20, ..Options::default() };
        let answer = ask(&mut Session::new(options, false), &line);
        assert_eq!(answer, json!({"a": on, "b": null}));
    }
}

#[test]
fn errors_name_the_list_that_a_value_is_in() {
    let mut line = state();
    line["jobs"][0].as_object_mut().unwrap().remove("current");
    line["new_jobs"][0]["current"] = json!({"node": "0/2", "gpus": 1});
    let error = ask(&mut session(false), &line)["_error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("new_jobs[0].current.node:"), "{error}");
}

#[test]
fn the_explanation_gives_the_reason_of_waiting() {
    let mut line = state();
    line["power_budget_w"] = json!(200);
    let answer = ask(&mut session(true), &line);
    assert_eq!(answer["bert"], Value::Null);
    let plan = &answer["_plan"];
    assert!(plan["reasons"]["bert"].as_str().unwrap().starts_with("PowerBudget"), "{plan}");
    assert!(plan["cost"].is_number() && plan["trials"].is_u64());
}

#[test]
fn bad_input_names_the_field_and_changes_nothing() {
    let set = |pointer: &str, value: Value| {
        let mut line = state();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = line.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            other => other[key] = value,
        }
        line.to_string()
    };
    let cases = [
        ("{\"now\": 1,".to_owned(), "line:"),
        ("[]".to_owned(), "line:"),
        (String::new(), "line:"),
        ("\u{fffd}".to_owned(), "line:"),
        (state().to_string().replacen("\"now\":100", "\"now\":NaN", 1), "now:"),
        (state().to_string() + "{}", "line:"),
        ("{\"now\": 1}".to_owned(), "gpu_types: is missing"),
        (set("/classes/0", json!({"gpu_type": "V100", "gpus": 2})), "classes[0].count: is missing"),
        (set("/version", json!(2)), "version:"),
        (set("/now", json!(-1)), "now:"),
        (set("/now", json!("noon")), "now:"),
        (set("/pue", json!(0.2)), "pue:"),
        (set("/eur_per_kwh", Value::Null), "eur_per_kwh: is missing"),
        (set("/tariff", json!([[0, 0.2], [0, 0.3]])), "tariff:"),
        (set("/budget", json!([[0, -5]])), "budget[0][1]:"),
        (set("/restart_s", json!(-1)), "restart_s:"),
        (set("/classes/0/gpus", json!(0)), "classes[0].gpus:"),
        (set("/classes/0/count", json!(200_000)), "classes[0].count:"),
        (set("/classes/1/gpu_type", json!("H100")), "classes[1].gpu_type:"),
        (set("/gpu_types/0/max_w", json!(1)), "gpu_types[0].max_w:"),
        (set("/new_jobs/0/submit_s", json!(-3)), "new_jobs[0].submit_s:"),
        (set("/new_jobs/0/weight", Value::Null), "new_jobs[0].weight: is missing"),
        (set("/new_jobs/0/allowed", json!([0])), "new_jobs[0].allowed[0]:"),
        (set("/new_jobs/0/epoch_s", json!({"V100": [-600]})), "new_jobs[0].epoch_s.V100[0]:"),
        (set("/new_jobs/0/epoch_s", json!({"A100": [600]})), "new_jobs[0].power_w.A100:"),
        (set("/new_jobs/0/power_w", json!({"V100": [1], "T4": [1, 1]})), "new_jobs[0].power_w.V100[1]:"),
        (set("/new_jobs/0/spread", json!({"many": 1.1})), "new_jobs[0].spread.many:"),
        (set("/new_jobs/0/limits", json!({"V100": [[0, 1, 1]]})), "new_jobs[0].limits.V100[0][0]:"),
        (set("/jobs/0/id", json!("gpt")), "jobs[0].id:"),
        (set("/jobs/0/epochs_left", json!(0)), "jobs[0].epochs_left:"),
        (set("/jobs/0/current", json!({"node": "0/2", "gpus": 1})), "jobs[0].current.node:"),
        (set("/jobs/0/current", json!({"node": "0/1", "gpus": 3})), "jobs[0].current.gpus:"),
        (set("/jobs/0/current", json!({"nodes": ["0/1", "1/0"], "gpus": 1})), "jobs[0].current.nodes[1]:"),
        (set("/jobs/0/state", json!("asleep")), "jobs[0].state:"),
        (set("/jobs/0/state", json!("stopping")), "jobs[0].current: is missing"),
        (set("/jobs/0/forbidden", json!(["9/9"])), "jobs[0].forbidden[0]:"),
        (set("/jobs", json!([3])), "jobs[0]"),
    ];
    let mut session = session(false);
    let good = session.answer(state().to_string().as_bytes());
    for (line, field) in cases {
        let answer: Value = serde_json::from_str(&session.answer(line.as_bytes())).unwrap();
        let error = answer["_error"].as_str().unwrap_or_else(|| panic!("{field} was answered with {answer}"));
        assert!(error.starts_with(field), "{error:?} does not begin with {field:?}");
        assert_eq!(session.answer(state().to_string().as_bytes()), good, "after {field}");
    }
}

#[test]
fn more_jobs_than_the_protocol_allows_are_an_error() {
    let mut line = state();
    line["jobs"] = (0..200_001).map(|i| json!({"id": i.to_string(), "epochs_left": 1})).collect();
    let answer = ask(&mut session(false), &line);
    assert_eq!(answer["_error"], "jobs: 200001 are more than 200000");
}

#[test]
fn every_line_gets_one_line_even_without_an_end() {
    let input = format!("{}\nnonsense\n{}", state(), state());
    let mut output = Vec::new();
    serve(&mut session(false), input.as_bytes(), &mut output).unwrap();
    let lines: Vec<Value> =
        String::from_utf8(output).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[1]["_error"].is_string());
    assert_eq!(lines[0], lines[2]);
}

/// Random lines, most of them nearly right. `FUZZ_LINES` says how many.
#[test]
fn no_line_makes_it_panic() {
    let count: u64 = std::env::var("FUZZ_LINES").ok().and_then(|n| n.parse().ok()).unwrap_or(5000);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (mut errors, mut session) = (0_u64, session(true));
    for method in Method::ALL.into_iter().cycle().take(usize::try_from(count / 100).unwrap() + 1) {
        if rng.random_bool(0.5) {
            let options = Options { method, trials: 5, ..Options::default() };
            session = Session::new(options, true);
        }
        for _ in 0..100 {
            let mut line = state();
            for _ in 0..rng.random_range(0..4) {
                mutate(&mut line, &mut rng, 0);
            }
            let mut text = line.to_string().into_bytes();
            if rng.random_bool(0.1) {
                let at = rng.random_range(0..text.len());
                text[at] = rng.random();
            }
            let answer: Value = serde_json::from_str(&session.answer(&text)).unwrap();
            errors += u64::from(answer.get("_error").is_some());
        }
    }
    // The lines are neither all refused nor all accepted.
    assert!(errors > count / 10 && errors < count * 9 / 10, "{errors} errors in {count} lines");
}

/// Changes one value somewhere: another number, another shape, a copy, nothing.
fn mutate(value: &mut Value, rng: &mut impl Rng, depth: u32) {
    let deeper = depth < 6 && rng.random_bool(0.8);
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let pick = rng.random_range(0..map.len());
            let inner = map.iter_mut().nth(pick).unwrap().1;
            mutate(inner, rng, depth + 1);
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let pick = rng.random_range(0..list.len());
            if rng.random_bool(0.1) {
                let copy = list[pick].clone();
                list.push(copy);
            } else {
                mutate(&mut list[pick], rng, depth + 1);
            }
        }
        other => {
            let numbers = [0.0, -1.0, 1.0, 2.0, 3.5, 1e-300, 1e15, 1e16, 1e300, 4294967296.0, 100.0, 7200.0];
            *other = match rng.random_range(0..12_u32) {
                0 => Value::Null,
                1 => json!([]),
                2 => json!({}),
                3 => json!("0/1"),
                4 => json!({"node": "0/1", "gpus": 1}),
                5 => json!([[0, 500], [3600, 900]]),
                6 => json!(true),
                _ => json!(numbers[rng.random_range(0..numbers.len())]),
            };
        }
    }
}
