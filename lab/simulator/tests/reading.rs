//! Files as the formats' authors write them (made-up rows), and what is wrong with others.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};

use andreas_baselines::Method;
use andreas_model::{GpuCount, Seconds, Time};
use andreas_simulator::readers::{self, ClusterFile, Format, TraceJob, TraceRange, read_trace};
use andreas_simulator::report::{self, Report};
use andreas_simulator::{Failure, Knowledge, Outcome, PredictionError, Setup, Summary, Watch, run_all};

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn mixed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clusters/mixed.yaml")
}

const ITP: &str = "job,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
0,1000,45775,resnet50,9000,256,8,7000
1,1600,11197,gpt2,5000,128,1,1400
2,1700,7776,vgg16,4000,64,16,2100
3,1800,100,new-model,4000,64,1,700
";

fn read(format: Format, text: &str) -> Vec<TraceJob> {
    let folder = tempfile::tempdir().unwrap();
    read_trace(format, &file(folder.path(), "trace.csv", text)).unwrap()
}

#[test]
fn every_format_says_the_same_kind_of_thing() {
    let itp = &read(Format::Itp, ITP)[1];
    assert_eq!((itp.gpus, itp.duration_s, itp.deadline_s, itp.batch), (1, 1400.0, Some(5000.0), Some(128)));

    let own = "id,submit_s,gpus,duration_s,deadline_s,weight,model,batch,types\na,5,2,60,,2.5,bert,,\n";
    let own = &read(Format::Csv, own)[0];
    assert_eq!((own.deadline_s, own.weight, own.model.as_deref()), (None, Some(2.5), Some("bert")));

    let philly = "timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 08:01:55,50,2,100,11cb48\n2017-10-09 08:01:56,0,2,0,x\n";
    let philly = read(Format::Philly, philly);
    assert_eq!(philly[0].namespace.as_deref(), Some("11cb48"));
    assert_eq!((philly.len(), philly[1].submit_s - philly[0].submit_s), (2, 3600.0));

    let chronus =
        "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,best_effort,job_type
0,vc,4,100,6910,resnet101,20,8,30,10,0,strict
1,vc,1,100,6910,alexnet,20,8,40-70-90,10-8-5,0,soft
2,vc,1,100,6910,alexnet,20,8,0,0,1,best
3,vc,0,100,6910,alexnet,20,8,0,0,1,best\n";
    let chronus = read(Format::Chronus, chronus);
    let deadlines: Vec<_> = chronus.iter().map(|j| j.deadline_s).collect();
    assert_eq!(deadlines, [Some(130.0 * 60.0), Some(140.0 * 60.0), None]);
    assert_eq!((chronus[0].weight, chronus[0].duration_s), (Some(5.0), 1200.0));
    assert_eq!(chronus[0].namespace.as_deref(), Some("vc"));

    let openb =
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,460,V100M16|V100M32,LS,Running,10,110,20\np1,1,1,0,0,,BE,Running,0,10,0\np2,1,1,1,1000,,BE,Pending,5,50,\n";
    let openb = read(Format::Openb, openb);
    assert_eq!((openb.len(), openb[0].duration_s, openb[0].submit_s), (1, 90.0, 10.0));
}

#[test]
fn an_error_names_file_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (Format::Itp, ITP.replace("1600", "soon"), "row 2 (line 3), submission_time: "),
        (Format::Itp, ITP.replace("num_gpu", "gpus"), "row 1 (line 2): "),
        (Format::Csv, "id,submit_s,gpus,duration_s\na,0,1,-5\n".to_owned(), "row 1 (a), duration: "),
        (
            Format::Csv,
            "id,submit_s,gpus,duration_s\na,0,1,5\na,0,1,5\n".to_owned(),
            "id: \"a\" is there twice",
        ),
        (Format::Philly, "timestamp,duration,num_gpus\nnoon,1,1\n".to_owned(), "row 1, timestamp: "),
    ];
    for (format, text, at) in cases {
        let path = file(folder.path(), "trace", &text);
        let error = read_trace(format, &path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: {at}", path.display())), "{format}: {error}");
    }
}

#[test]
fn a_job_takes_as_long_as_in_the_trace_where_the_trace_ran_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("itp.csv.gz");
    let mut packed =
        flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::fast());
    packed.write_all(ITP.as_bytes()).unwrap();
    packed.finish().unwrap();

    let scenario =
        readers::scenario(Format::Itp, &path, &mixed(), TraceRange { pace: 2.0, ..TraceRange::default() })
            .unwrap();

    assert_eq!(scenario.jobs.len(), 4);
    let job = &scenario.jobs[0];
    let row = |gpus: u32| {
        job.estimates
            .iter()
            .find(|r| r.gpu_type.as_str().contains("A100") && r.gpus == GpuCount(gpus))
            .unwrap()
    };
    assert_eq!((job.submit, job.deadline, job.epochs_left), (Time(0.0), Some(Time(8000.0)), 10.0));
    assert_eq!(row(8).epoch, Seconds(700.0));
    assert!(row(4).epoch > row(8).epoch && row(4).power < row(8).power);
    // Twice the pace halves the time between submissions and no deadline's slack.
    let second = &scenario.jobs[1];
    assert_eq!((second.submit, second.deadline), (Time(300.0), Some(Time(3700.0))));
    // No node has 16 GPUs.
    assert_eq!(scenario.jobs[2].spread[0].nodes, 2);
}

#[test]
fn a_cluster_file_that_makes_no_sense_is_refused_with_the_field() {
    let text = std::fs::read_to_string(mixed()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(mixed().with_file_name("models.json"), folder.path().join("models.json")).unwrap();
    let trace = file(folder.path(), "itp.csv", ITP);
    let cases = [
        ("restart_s: 120", "restart_s: -1", "restart_s: is out of range"),
        ("restart_s: 120", "restarts: 120", "restarts"),
        ("gpus: 8, count", "gpus: 0, count", "nodes[0].gpus: "),
        ("per_kwh: 0.20", "by_hour: [1, 2]", "tariff: needs exactly one"),
        ("pue: 1.3", "pue: 0.3", "tariff: pue"),
        ("models.json", "none.json", "none.json"),
        ("gpu_type: Tesla-T4", "gpu_type: H100", "nodes[2].gpu_type: \"H100\""),
    ];
    for (from, to, says) in cases {
        let cluster = file(folder.path(), "cluster.yaml", &text.replace(from, to));
        let error =
            readers::scenario(Format::Itp, &trace, &cluster, TraceRange::default()).unwrap_err().to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
}

#[test]
fn nodes_fail_as_the_cluster_file_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), "itp.csv", ITP);
    let read =
        |cluster: &Path| readers::scenario(Format::Itp, &trace, cluster, TraceRange::default()).unwrap();
    let (without, with) = (read(&mixed()), read(&mixed().with_file_name("mixed-failures.yaml")));
    assert!(without.failures.is_empty());
    // Twelve nodes, sixty days, a failure every seven days and four hours of each.
    let expected = 12.0 * 60.0 * 24.0 / (168.0 + 4.0);
    assert!((with.failures.len() as f64 / expected - 1.0).abs() < 0.4, "{}", with.failures.len());
    assert!(with.failures.iter().all(|failure| failure.duration == Seconds(4.0 * 3600.0)));
    // All else is that of the cluster without them.
    assert_eq!((with.nodes, with.jobs), (without.nodes, without.jobs));
    // Single ones are listed.
    std::fs::copy(mixed().with_file_name("models.json"), folder.path().join("models.json")).unwrap();
    let text = std::fs::read_to_string(mixed()).unwrap();
    let listed = format!("{text}failures: {{list: [{{node: Tesla-T4-001, at_s: 60, for_s: 30}}]}}\n");
    let one = Failure { node: "Tesla-T4-001".into(), at: Time(60.0), duration: Seconds(30.0) };
    assert_eq!(read(&file(folder.path(), "cluster.yaml", &listed)).failures, [one]);
    let unknown = file(folder.path(), "cluster.yaml", &listed.replace("T4-001", "T4-004"));
    let error =
        readers::scenario(Format::Itp, &trace, &unknown, TraceRange::default()).unwrap_err().to_string();
    assert!(error.contains("failures.list[0]: "), "{error}");
}

#[test]
fn a_type_without_a_table_has_times_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let own = |seconds: &str, rest: &str| {
        format!(
            r#"{{"families": {{"resnet50-b128": {{"model": "resnet50", "batch": 128, "seconds_per_epoch": {seconds}{rest}}}}}}}"#
        )
    };
    file(root, "a100.json", &own(r#"{"A100": {"1": 0.5, "2": 0.375}}"#, ""));
    file(root, "v100.json", &own(r#"{"V100": {"1": 1}}"#, r#", "limits": {"A100": [[150, 1.1, 0.6]]}"#));
    let cluster = file(
        root,
        "cluster.yaml",
        "
gpu_types: [{name: A100, idle_w: 50, max_w: 400}, {name: T4, idle_w: 10, max_w: 70}]
nodes: [{gpu_type: A100, gpus: 8, count: 1}]
tariff: {per_kwh: 0.2}
models:
  - {format: own, file: a100.json}
  - {format: own, file: v100.json}
  - {format: relative, gpu_type: T4, to: A100, speed: 0.5}
",
    );
    let (_, models) = ClusterFile::read(&cluster).unwrap();
    // What the file does not say takes as long as in the product.
    let trace = file(root, "itp.csv", ITP);
    let scenario = readers::scenario(Format::Itp, &trace, &cluster, TraceRange::default()).unwrap();
    let usual = readers::scenario(Format::Itp, &trace, &mixed(), TraceRange::default()).unwrap();
    assert_eq!((scenario.restart, scenario.checkpoint), (usual.restart, usual.checkpoint));
    assert_eq!((scenario.tick, scenario.delays), (usual.tick, usual.delays));
    let resnet = &models.families["resnet50-b128"];
    assert_eq!(resnet.seconds["A100"], [(1, 0.5), (2, 0.375)].into());
    // Later tables add to a model.
    assert_eq!(resnet.seconds["V100"], [(1, 1.0)].into());
    assert_eq!(resnet.limits["A100"], [(150.0, 1.1, 0.6)]);
    // Half the speed for what a GPU does, the same seconds for what it does not.
    assert_eq!(resnet.seconds["T4"], [(1, 1.0), (2, 0.625)].into());
}

struct Silent;

impl Watch for Silent {
    fn seconds(&self) -> f64 {
        0.0
    }
    fn ended(&self, _: usize) {}
}

fn setup(method: Method) -> Setup {
    Setup {
        knowledge: Knowledge::Tables,
        policy: andreas_simulator::ProductPolicy::default(),
        sleep: andreas_simulator::Sleep::Never,
        method,
        seed: 0,
        trials: 10,
        error: PredictionError::default(),
        label: String::new(),
    }
}

#[test]
fn a_report_has_every_method() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), "<itp>.csv", ITP);
    let scenario = readers::scenario(Format::Itp, &trace, &mixed(), TraceRange::default()).unwrap();
    let setups = [setup(Method::FifoFixed), setup(Method::Edf)];
    let outcomes = run_all(&scenario, &setups, 1, &Silent).unwrap();
    let report = Report { scenario: &scenario, outcomes: &outcomes };

    let json: serde_json::Value =
        serde_json::from_str(&report::json(std::slice::from_ref(&report)).unwrap()).unwrap();
    assert_eq!(json[0]["outcomes"][1]["method"], "edf");
    assert_eq!(json[0]["outcomes"][0]["jobs"].as_array().unwrap().len(), 4);
    assert!(json[0]["outcomes"][0]["summary"]["total"].as_f64().unwrap() > 0.0);
    assert!(report::table(&report).contains("edf"));
    // The same again is the same again.
    assert_eq!(outcomes[1].replayed, run_all(&scenario, &setups, 1, &Silent).unwrap()[1].replayed);
}

#[test]
fn a_looped_trace_counts_its_second_round() {
    let folder = tempfile::tempdir().unwrap();
    // Given a job that fits nowhere, besides others.
    let rows = format!("{ITP}4,1900,100,resnet50,4000,256,9999,700\n");
    let trace = file(folder.path(), "itp.csv", &rows);
    let read = |range| readers::scenario(Format::Itp, &trace, &mixed(), range).unwrap();
    let once = read(TraceRange::default());
    let looped = read(TraceRange { looped: true, pace: 2.0, ..TraceRange::default() });
    assert_eq!(looped.jobs.len(), 3 * once.jobs.len());
    let (from, _) = looped.window.unwrap();
    let second: Vec<_> = looped.jobs.iter().filter(|job| looped.counts(job)).collect();
    assert_eq!((second.len(), looped.counted()), (once.jobs.len(), once.jobs.len()));
    for (scenario, name) in [(&once, "5 jobs"), (&looped, "5 jobs, looped")] {
        assert_eq!(scenario.name, format!("itp.csv: {name}, 1 left out that fit nowhere"));
    }
    for (again, job) in second.iter().zip(&once.jobs) {
        assert_eq!(again.id.as_str(), format!("{}@1", job.id));
        assert!(((again.submit - from).0 - job.submit.0 / 2.0).abs() < 1e-6);
        // Deadlines keep their distance, whatever the pace.
        let slack = |job: &andreas_planner::Job| (job.deadline.unwrap() - job.submit).0;
        assert!((slack(again) - slack(job)).abs() < 1e-6);
    }
}

#[test]
fn jobs_that_are_not_moldable_have_their_request_alone() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), "itp.csv", ITP);
    let read = |moldable| {
        let range = TraceRange { moldable, ..TraceRange::default() };
        readers::scenario(Format::Itp, &trace, &mixed(), range).unwrap()
    };
    let fixed = read(Some(0.0));
    let request_alone =
        |job: &andreas_planner::Job| job.estimates.iter().all(|row| Some(row.gpus) == job.requested_gpus);
    assert!(fixed.jobs.iter().all(request_alone));
    assert!(!read(None).jobs.iter().all(request_alone));
    assert_eq!(fixed.jobs.len(), read(Some(1.0)).jobs.len());
}

#[test]
fn measured_delays_replace_those_of_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(folder.path(), "delays.yaml", "restart_s: 12.5\nbind_s: 0.4\nstop_s: 3\n");
    let (restart, delays) = readers::delays(&good).unwrap();
    assert_eq!(restart, Some(Seconds(12.5)));
    assert_eq!((delays.bind_s, delays.stop_s, delays.first_start_s, delays.debounce_s), (0.4, 3.0, 0.0, 0.0));
    let bad = file(folder.path(), "bad.yaml", "bind_s: -1\n");
    assert!(readers::delays(&bad).unwrap_err().to_string().contains("bind_s"));
}

#[test]
fn several_runs_have_a_mean_and_a_deviation() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), "itp.csv", ITP);
    let scenario = readers::scenario(Format::Itp, &trace, &mixed(), TraceRange::default()).unwrap();
    let wrong = |method| Setup {
        error: PredictionError { mape: 0.4, ..PredictionError::default() },
        ..setup(method)
    };
    let outcomes = run_all(&scenario, &[wrong(Method::FifoFixed), wrong(Method::Edf)], 3, &Silent).unwrap();
    assert_eq!(
        outcomes.iter().map(|o| (o.method, o.runs.len())).collect::<Vec<_>>(),
        [(Method::FifoFixed, 3), (Method::Edf, 3)]
    );
    let energy = outcomes[1].spread(|s| s.energy().0);
    let mean = outcomes[1].runs.iter().map(|s| s.energy().0).sum::<f64>() / 3.0;
    assert!((energy.mean / mean - 1.0).abs() < 1e-12);
    // Each run has other errors, and they change what is chosen.
    assert!(energy.sd > 0.0);
    let (ratio, jackknife) = outcomes[1].relative_cost(&outcomes[0]);
    assert!(ratio.mean > 0.0 && jackknife > 0.0 && jackknife.is_finite());
    assert!(report::table(&Report { scenario: &scenario, outcomes: &outcomes }).contains('±'));
}

#[test]
fn runs_of_a_method_that_never_restarts_differ_too() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), "itp.csv", ITP);
    let scenario = readers::scenario(Format::Itp, &trace, &mixed(), TraceRange::default()).unwrap();
    let outcomes = run_all(&scenario, &[setup(Method::FifoFixed)], 3, &Silent).unwrap();
    // First starts take 57, 60 and 63 s.
    let turnaround = outcomes[0].spread(|s| s.mean_turnaround.0);
    assert!((turnaround.sd - 3.0).abs() < 1e-6, "{turnaround:?}");
    assert_eq!(outcomes[0].waits, vec![Some(Seconds::ZERO); 4]);
}

#[test]
fn what_jobs_may_have_changes_nothing_under_fixed_requests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let trace = root.join("tests/fixtures/elasticflow/cluster02-first400.csv.gz");
    // Given so many jobs at once that one would be split over nodes if it could be,
    let starts = |moldable: f64| -> Vec<f64> {
        let range = TraceRange { take: 250, moldable: Some(moldable), ..TraceRange::default() };
        let scenario = readers::scenario(Format::Itp, &trace, &mixed(), range).unwrap();
        let outcomes = run_all(&scenario, &[setup(Method::FifoFixed)], 1, &Silent).unwrap();
        outcomes[0].replayed.jobs.iter().map(|job| job.start.unwrap().0).collect()
    };
    let (fixed, moldable) = (starts(0.0), starts(1.0));
    // then jobs that may have other numbers of GPUs start when they start with their requests alone.
    let apart = fixed.iter().zip(&moldable).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(fixed.len() == moldable.len() && apart < 1e-3, "{apart} s");
}

#[test]
fn a_table_has_the_most_and_the_means_of_all_runs() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(folder.path(), "itp.csv", ITP);
    let scenario = readers::scenario(Format::Itp, &trace, &mixed(), TraceRange::default()).unwrap();
    let mut outcomes = run_all(&scenario, &[setup(Method::FifoFixed)], 1, &Silent).unwrap();
    let run = |violations: usize, seconds: f64, gap: Option<f64>| Summary {
        planned_violations: violations,
        violation_time: Seconds(seconds),
        failures: violations,
        lost_work: Seconds(3600.0 * seconds),
        mean_gap: gap,
        mean_missed_saving: gap.map(|gap| 2.0 * gap),
        ..Summary::default()
    };
    outcomes[0].runs = vec![run(0, 5.0, Some(0.01)), run(2, 3.0, Some(0.03)), run(1, 4.0, None)];
    let table = report::markdown(&Report { scenario: &scenario, outcomes: &outcomes });
    assert!(table.contains("| RESTARTS | FAILURES | LOST H | OVER BUDGET | UNFINISHED | GAP % | MISSED % |"));
    assert!(table.contains("| 0 | 1 ± 1 | 4.0 ± 1.0 | 2 / 5 s | 0 | 2.00 | 4.00 |"), "{table}");
}

#[test]
fn waits_of_gangs_are_compared_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    // Given three gangs, and jobs that fit a node,
    let rows = format!("{ITP}4,1900,100,vgg16,4000,64,16,700\n5,2000,100,vgg16,4000,64,16,700\n");
    let trace = file(folder.path(), "itp.csv", &rows);
    let scenario = readers::scenario(Format::Itp, &trace, &mixed(), TraceRange::default()).unwrap();
    let first = run_all(&scenario, &[setup(Method::FifoFixed)], 1, &Silent).unwrap().remove(0);
    let waits = |hours: [Option<f64>; 6]| Outcome {
        waits: hours.iter().map(|hours| hours.map(|hours| Seconds(3600.0 * hours))).collect(),
        ..first.clone()
    };
    let [long, none] = [Some(9.0), None];
    let known = waits([Some(0.0), Some(0.0), Some(1.0), Some(0.0), Some(2.0), Some(0.0)]);
    let learning =
        Outcome { label: "learning".into(), ..waits([long, long, Some(1.1), long, Some(3.0), Some(0.001)]) };
    // then only the gangs count, one that starts at once in both has not waited longer,
    assert_eq!(
        report::gang_waits(&scenario, &known, &learning).unwrap(),
        "Gangs (they ask for more GPUs than a node has): 3. They wait 1.37 h under fifo-fixed learning, 1.00 h under fifo-fixed; \
         1 over 1.2 times as long, the worst 1.50 times."
    );
    // and those that do not start in both are left out.
    assert_eq!(report::gang_waits(&scenario, &known, &waits([long, long, none, long, none, none])), None);
}
