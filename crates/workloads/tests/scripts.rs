//! Batch scripts as people write them, run as they are: converted, and started on each worker with what its pod has.
//!
//! `scripts/NAME.txt` holds what is expected. `UPDATE=1` writes it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use andreas_workloads::convert::convert;
use common::Job;
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

fn texts(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|word| Some(word.as_str()?.replace("$$", "$")))
        .collect()
}

/// What became of a script, and what its programs saw on each worker.
fn report(name: &str) -> String {
    let text = fs::read_to_string(folder().join(format!("{name}.sbatch"))).expect("a script");
    let arguments: Vec<String> =
        if name == "arguments" { vec!["bert.yaml".into(), "--lr".into(), "1 2".into()] } else { Vec::new() };
    let made = convert(&text, Some("registry.example/train:1"), &arguments).expect(name).remove(0);
    let mut report = String::new();
    for note in &made.notes {
        report += &format!("{}: {}: {}\n", note.level.as_str(), note.field, note.text);
    }
    let spec = &made.job["spec"];
    let container = &spec["template"]["spec"]["containers"][0];
    report += &format!("gpus: {}, image: {}\n", spec["gpus"], container["image"]);
    let nodes = spec["gpus"]["maxNodes"].as_i64().unwrap_or(1);
    let gpus = spec["gpus"]["min"].as_i64().unwrap_or(1) / nodes;
    let number = |number: i64| usize::try_from(number).expect("a size");
    let mut job = Job::new("/bin/sh", number(nodes), u32::try_from(gpus).expect("a size"));
    for variable in container["env"].as_array().into_iter().flatten() {
        let text = |field: &str| variable[field].as_str().expect("a text").replace("$$", "$");
        job.given.push((text("name"), text("value")));
    }
    let command = texts(&container["command"]);
    let ended = if name == "signal" {
        let child = job.start(0, &command);
        while !job.worker(0).join("record").exists() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let process = child.id().to_string();
        std::process::Command::new("kill").args(["-TERM", &process]).status().expect("kill");
        vec![job.end(0, child)]
    } else {
        job.run_command(&command)
    };
    let random = |line: &str| match line.split_once("--rdzv_id ") {
        Some((before, after)) => {
            format!("{before}--rdzv_id N {}", after.split_once(' ').map_or("", |(_, rest)| rest))
        }
        None => line.to_owned(),
    };
    for (index, worker) in ended.into_iter().enumerate() {
        report += &format!("worker {index} ended with {}\n", worker.code);
        // Which of the steps that run at once has which GPU is chance.
        let seed = |line: String| if name == "background" { line[..line.len() - 2].to_owned() } else { line };
        let mut lines: Vec<String> = worker.record.iter().map(|line| seed(random(line))).collect();
        lines.sort();
        for line in lines {
            report += &format!("  {line}\n");
        }
    }
    report
}

#[test]
fn twenty_scripts_run_as_they_are() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .expect("scripts")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".sbatch")?.to_owned()))
        .collect();
    names.sort();
    assert_eq!(names.len(), 20);
    let mut wrong = Vec::new();
    for name in names {
        let (path, report) = (folder().join(format!("{name}.txt")), report(&name));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &report).expect("written");
        } else if fs::read_to_string(&path).unwrap_or_default() != report {
            wrong.push(format!("{name}:\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
