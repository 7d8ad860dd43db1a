//! The wall clock of a node. All nodes read this machine's, and the kernel has no namespace for it. Programs read it by code that the
//! kernel maps into every process, the vDSO: that code is replaced in the processes of one node, whatever they are written in.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::node::Node;

/// A program that has just started reads the right clock for so long.
const ROUND: Duration = Duration::from_millis(200);
/// What stands for a function lies in the free end of the image, in places of this size.
const PLACE: usize = 32;
/// `jmp rel32`.
const JUMP: usize = 5;
/// The entry of `/proc/PID/auxv` with the image's address (`AT_SYSINFO_EHDR`).
const IMAGE: u64 = 33;

/// A node's clock is off until this is dropped.
#[derive(Debug)]
pub struct WrongClock {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Sets the wall clock of everything that runs on the node, and of what will start there, so many seconds ahead. Monotonic time goes
    /// on as it is.
    ///
    /// # Errors
    /// Where the processor is no x86-64, or the kernel's code is not as expected.
    pub fn set_clock(&self, ahead: i32) -> Result<WrongClock> {
        ensure!(cfg!(target_arch = "x86_64"), "the code is that of x86-64");
        let replaced = Vdso::own()?.replaced(ahead)?;
        let (first, stop) = (self.first(), Arc::new(AtomicBool::new(false)));
        let mut done = HashSet::new();
        // The services at once.
        round(first, &replaced, &mut done);
        ensure!(!done.is_empty(), "no process of {} could be written to", self.name());
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(ROUND);
                round(first, &replaced, &mut done);
            }
            for (pid, image) in done {
                // It may have ended.
                let _ = replaced.undo(pid, image);
            }
        });
        Ok(WrongClock { stop, thread: Some(thread) })
    }
}

impl Drop for WrongClock {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Replaces the code in every process below that one which has not got it yet. A program started by `exec` has another image.
fn round(first: i32, replaced: &Replaced, done: &mut HashSet<(i32, u64)>) {
    for pid in descendants(first) {
        // It may end at any moment.
        let Ok(image) = image_of(pid) else { continue };
        if !done.contains(&(pid, image)) && replaced.write(pid, image).is_ok() {
            done.insert((pid, image));
        }
    }
}

/// A process and all below it.
fn descendants(first: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name before it may hold anything.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        children.entry(parent.unwrap_or_default()).or_default().push(pid);
    }
    let mut found = vec![first];
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        found.extend(children.remove(&pid).unwrap_or_default());
        at += 1;
    }
    found
}

/// Where a process has the image.
fn image_of(pid: i32) -> Result<u64> {
    let vector = std::fs::read(format!("/proc/{pid}/auxv"))?;
    let mut entries = vector.chunks_exact(16);
    let entry = entries.find(|entry| entry.starts_with(&IMAGE.to_ne_bytes())).context("no vDSO")?;
    Ok(u64::from_ne_bytes(entry[8..].try_into()?))
}

/// The kernel's image: an ELF library. It is the same in every process.
struct Vdso(Vec<u8>);

impl Vdso {
    fn own() -> Result<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).context("no vDSO")?;
        let (from, to) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).context("a range")?;
        let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
        let mut image = vec![0; usize::try_from(to - from)?];
        File::open("/proc/self/mem")?.read_exact_at(&mut image, from)?;
        Ok(Self(image))
    }

    fn number(&self, at: usize, size: usize) -> Result<usize> {
        let bytes = self.0.get(at..at + size).context("past the image's end")?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Offset and size of the sections of a kind, and the section that each is linked to.
    fn sections(&self) -> Result<Vec<(usize, usize, usize, usize)>> {
        let (headers, count) = (self.number(40, 8)?, self.number(60, 2)?);
        (0..count)
            .map(|section| headers + 64 * section)
            .map(|at| {
                Ok((
                    self.number(at + 4, 4)?,
                    self.number(at + 24, 8)?,
                    self.number(at + 32, 8)?,
                    self.number(at + 40, 4)?,
                ))
            })
            .collect()
    }

    /// Where a function begins.
    fn function(&self, wanted: &str) -> Result<usize> {
        const SYMBOLS: usize = 11;
        let sections = self.sections()?;
        for (_, from, size, names) in sections.iter().filter(|(kind, ..)| *kind == SYMBOLS) {
            let names = sections.get(*names).context("names")?.1;
            for at in (*from..from + size).step_by(24) {
                let name = self.0.get(names + self.number(at, 4)?..).context("a name")?;
                if name.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)) {
                    return self.number(at + 8, 8);
                }
            }
        }
        anyhow::bail!("the vDSO has no {wanted}")
    }

    /// Its functions for a clock that is so many seconds ahead.
    fn replaced(&self, ahead: i32) -> Result<Replaced> {
        let end =
            self.sections()?.into_iter().map(|(_, from, size, _)| from + size).max().unwrap_or_default();
        let end = end.max(self.number(40, 8)? + 64 * self.number(60, 2)?);
        let mut place = end.next_multiple_of(PLACE);
        let mut replaced = Replaced { code: Vec::new(), before: Vec::new() };
        for (name, code) in functions(ahead) {
            ensure!(code.len() <= PLACE && place + PLACE <= self.0.len(), "no room in the vDSO");
            let entry = self.function(name)?;
            let before = self.0.get(entry..entry + JUMP).context("a function")?;
            let distance = i32::try_from(place)? - i32::try_from(entry + JUMP)?;
            replaced.code.push((place, code));
            // After the code that it leads to.
            replaced.code.push((entry, [vec![0xe9], distance.to_le_bytes().to_vec()].concat()));
            replaced.before.push((entry, before.to_vec()));
            place += PLACE;
        }
        Ok(replaced)
    }
}

/// System calls in the place of the kernel's shortcuts, with the seconds added to what they say.
fn functions(ahead: i32) -> [(&'static str, Vec<u8>); 3] {
    let seconds = ahead.to_le_bytes();
    let call = |number: u8| vec![0xb8, number, 0, 0, 0, 0x0f, 0x05];
    let code = |number, parts: [&[u8]; 3]| [call(number).as_slice(), parts[0], parts[1], parts[2]].concat();
    [
        // test edi, edi; jz +5; cmp edi, 5 (CLOCK_REALTIME_COARSE); jne +7; add qword [rsi], seconds; ret
        (
            "__vdso_clock_gettime",
            code(228, [&[0x85, 0xff, 0x74, 5, 0x83, 0xff, 5, 0x75, 7, 0x48, 0x81, 0x06], &seconds, &[0xc3]]),
        ),
        // test rdi, rdi; jz +7; add qword [rdi], seconds; ret
        (
            "__vdso_gettimeofday",
            code(96, [&[0x48, 0x85, 0xff, 0x74, 7, 0x48, 0x81, 0x07], &seconds, &[0xc3]]),
        ),
        // add rax, seconds; test rdi, rdi; jz +3; mov [rdi], rax; ret
        (
            "__vdso_time",
            code(201, [&[0x48, 0x05], &seconds, &[0x48, 0x85, 0xff, 0x74, 3, 0x48, 0x89, 0x07, 0xc3]]),
        ),
    ]
}

/// What is written over the image, by offset, and what was there.
struct Replaced {
    code: Vec<(usize, Vec<u8>)>,
    before: Vec<(usize, Vec<u8>)>,
}

impl Replaced {
    fn write(&self, pid: i32, image: u64) -> Result<()> {
        put(pid, image, &self.code)
    }

    fn undo(&self, pid: i32, image: u64) -> Result<()> {
        ensure!(image_of(pid)? == image, "another program");
        put(pid, image, &self.before)
    }
}

/// The kernel copies the page for this process alone.
fn put(pid: i32, image: u64, parts: &[(usize, Vec<u8>)]) -> Result<()> {
    let memory = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"))?;
    for (offset, bytes) in parts {
        memory.write_all_at(bytes, image + *offset as u64)?;
    }
    Ok(())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_programs_clock_is_set_while_it_runs_and_set_back() {
        let mut clock = std::process::Command::new("bash")
            .args(["-c", "while read -r _; do printf '%(%s)T\\n' -1; done"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(clock.id()).unwrap();
        let (mut asks, answers) = (clock.stdin.take().unwrap(), clock.stdout.take().unwrap());
        let mut answers = std::io::BufRead::lines(std::io::BufReader::new(answers));
        let mut ahead = || {
            std::io::Write::write_all(&mut asks, b"\n").unwrap();
            let said: i64 = answers.next().unwrap().unwrap().parse().unwrap();
            said - jiff::Timestamp::now().as_second()
        };
        assert!(ahead().abs() <= 1);
        let replaced = Vdso::own().unwrap().replaced(-3_600).unwrap();
        let image = image_of(pid).unwrap();
        replaced.write(pid, image).unwrap();
        assert!((ahead() + 3_600).abs() <= 1);
        replaced.undo(pid, image).unwrap();
        assert!(ahead().abs() <= 1);
        clock.kill().unwrap();
        clock.wait().unwrap();
    }
}
