//! The trainer as a process: its checkpoints and posts. Faults on request and gangs are those of the scenarios.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn trainer(env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_andreas-trainer"));
    command.env_clear().envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(env: &[(&str, &str)]) -> (i32, String) {
    finish(trainer(env).spawn().unwrap())
}

fn finish(child: Child) -> (i32, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    (status.code().unwrap_or(-1), text)
}

fn terminate(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

fn epochs_done(dir: &Path) -> f64 {
    saved(dir).unwrap()
}

/// Epochs that the checkpoint has, once there is one.
fn saved(dir: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(dir.join("checkpoint.json")).ok()?;
    serde_json::from_str::<serde_json::Value>(&text).ok()?["epochsDone"].as_f64()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_stop_saves_and_the_next_attempt_goes_on_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let env = [
        ("CHECKPOINT_DIR", dir.path().to_str().unwrap()),
        ("TRAINER_EPOCHS", "8"),
        ("TRAINER_SECONDS_PER_EPOCH", "0.2"),
    ];
    let child = trainer(&env).spawn().unwrap();
    until("three epochs are saved", || saved(dir.path()).is_some_and(|done| done >= 3.0));
    terminate(&child);
    let (code, text) = finish(child);
    assert_eq!(code, 143, "{text}");
    let done = epochs_done(dir.path());
    assert!((2.0..=5.0).contains(&done), "{done}");

    let began = Instant::now();
    let (code, text) = run(&env);
    assert_eq!(code, 0, "{text}");
    assert!(began.elapsed() < Duration::from_millis(1600), "not from the beginning: {text}");
    assert_eq!(epochs_done(dir.path()), 8.0);
    assert!(text.contains("attempt 2:"), "{text}");
}

/// A server that answers every post with this status, and what it was sent.
fn server(status: &'static str) -> (String, mpsc::Receiver<(String, serde_json::Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/status", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            if sender.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (url, receiver)
}

#[test]
fn progress_is_posted_as_the_callbacks_do_and_never_needed() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let (url, posts) = server("200 OK");
    let env = |url: &'static str| {
        [
            ("KUBEFLOW_TRAINER_SERVER_URL", url),
            ("TRAINER_REPORT_SECONDS", "0.2"),
            ("TRAINER_EPOCHS", "10"),
            ("TRAINER_SECONDS_PER_EPOCH", "0.1"),
        ]
    };
    let url: &'static str = url.leak();
    let mut command = trainer(&env(url));
    command.env("KUBEFLOW_TRAINER_SERVER_TOKEN", &token);
    let (code, text) = finish(command.spawn().unwrap());
    assert_eq!(code, 0, "{text}");
    let posts: Vec<_> = posts.try_iter().collect();
    assert!(posts.iter().all(|(head, _)| head.to_lowercase().contains("authorization: bearer secret")));
    let percent: Vec<u64> =
        posts.iter().map(|(_, body)| body["trainerStatus"]["progressPercentage"].as_u64().unwrap()).collect();
    assert!(
        percent.is_sorted() && percent.first() == Some(&0) && percent.last() == Some(&100),
        "{percent:?}"
    );
    assert!((4..=8).contains(&percent.len()), "no more often than allowed: {percent:?}");

    let (url, _posts) = server("500 Internal Server Error");
    let (code, text) = run(&env(url.leak()));
    assert!(code == 0 && text.matches("progress not reported").count() == 1, "{code} {text}");
}

#[test]
fn help_names_every_variable() {
    let output = trainer(&[]).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{help}");
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        let of_ours = |word: &&str| word.len() > "TRAINER_".len() && word.starts_with("TRAINER_");
        words.filter(of_ours).map(str::to_owned).collect()
    };
    let read = names(concat!(include_str!("../src/settings.rs"), include_str!("../src/pace.rs")));
    let unnamed: BTreeSet<String> = &read - &names(&help);
    assert!(unnamed.is_empty(), "{unnamed:?}");
}
