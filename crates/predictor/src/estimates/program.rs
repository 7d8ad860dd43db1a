//! The program of a run, without what changes from run to run: runs of one program share a TrainingProfile.
//!
//! A program is the image, the command line, the literal environment and the owner of the run. Left out are
//! seeds, learning rates and other parameters that do not change the speed, output folders, names and numbers
//! of runs, and how the program is started on several GPUs. All else distinguishes programs: two runs that
//! differ in a word that is not known here have a profile each. A missed match costs some accuracy at the
//! first run, a wrong one misleads plans.
//!
//! Pure, and bounded by the size of a template.

mod arguments;

use ring::digest::{SHA256, digest};

use arguments::{is_name, is_switch, is_switch_value, is_volatile};

/// Longest readable part of a profile's name, bytes.
const MAX_STEM: usize = 40;
/// Longest description of a program, bytes.
pub const MAX_DESCRIPTION: usize = 1_024;

/// The program of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the TrainingProfile that its runs share.
    pub profile: String,
    /// What was compared, one fact on each line, at most 1024 bytes.
    pub description: String,
}

/// What is known of a run before it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunDescription<'a> {
    /// Its name; often generated.
    pub name: &'a str,
    /// Kind and name of its controller.
    pub owner: Option<(&'a str, &'a str)>,
    /// Image of its training container.
    pub image: &'a str,
    /// Command and arguments.
    pub command: Vec<&'a str>,
    /// Literal variables of the environment.
    pub environment: Vec<(&'a str, &'a str)>,
}

impl RunDescription<'_> {
    /// The run's program.
    pub fn program(&self) -> Program {
        let mut facts = vec![format!("image {}", image(self.image))];
        if let Some((kind, owner)) = self.owner {
            // An owner with the run's own name is another one for each run.
            let owner = if self.name.len() > 3 { owner.replace(self.name, "*") } else { owner.to_owned() };
            facts.push(format!(
                "owner {kind} {}",
                without_suffix(&without_generated_parts(&owner, self.name))
            ));
        }
        let words = command_line(&self.command);
        let kept = without_volatile(&words, self.name);
        facts.extend(kept.iter().map(|word| format!("word {word}")));
        facts.extend(self.environment_facts());
        let hash = digest(&SHA256, facts.join("\n").as_bytes());
        let hash: String = hash.as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect();
        Program {
            profile: format!("{}-{hash}", stem(&kept, self.image)),
            description: bounded(&facts.join("\n")),
        }
    }

    /// The environment variables that identify the program, sorted by name.
    fn environment_facts(&self) -> Vec<String> {
        let all = self.environment.iter().filter(|(name, _)| !is_volatile(name));
        let mut facts: Vec<String> = all
            .map(|(name, value)| format!("env {name}={}", without_generated_parts(value, self.name)))
            .collect();
        facts.sort_unstable();
        facts
    }
}

/// The words of command and arguments. A script after `sh -c` is split like a shell does.
fn command_line(all: &[&str]) -> Vec<String> {
    let mut words = Vec::new();
    let mut script = false;
    for word in all {
        if std::mem::take(&mut script) {
            let split = shlex::split(word);
            words.extend(split.unwrap_or_else(|| word.split_whitespace().map(str::to_owned).collect()));
            continue;
        }
        let shell = words.last().is_some_and(|last: &String| {
            matches!(last.rsplit('/').next(), Some("sh" | "bash" | "ash" | "dash" | "zsh"))
        });
        script = shell && word.starts_with('-') && word.ends_with('c');
        words.push((*word).to_owned());
    }
    words
}

/// The words without volatile arguments, each without generated parts.
fn without_volatile(words: &[String], own_name: &str) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let flag = word.starts_with('-') && word.len() > 1;
        match word.split_once('=') {
            Some((name, _)) if is_name(name) && is_volatile(name) => {}
            Some((name, value)) => kept.push(format!("{name}={}", without_generated_parts(value, own_name))),
            None if flag && is_volatile(word) => {
                // Its value is the next word, unless that is an argument of its own.
                let switch = is_switch(word);
                rest.next_if(|next| is_switch_value(next) || !switch && !next.starts_with('-'));
            }
            None => kept.push(without_generated_parts(word, own_name)),
        }
    }
    kept
}

/// A word with `*` for its generated parts. Whole numbers stay: they may be sizes. So does the job's own name, which
/// is often that of its model or script, but for the suffix that Kubernetes made up.
fn without_generated_parts(word: &str, own_name: &str) -> String {
    let kept = without_suffix(own_name);
    let text = if kept == own_name { word.to_owned() } else { word.replace(own_name, &format!("{kept}-*")) };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text;
    }
    let is_separator = |c: char| "-_/.:@+, ".contains(c);
    let parts: Vec<&str> = text.split(is_separator).collect();
    let mut separators = text.chars().filter(|c| is_separator(*c));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < parts.len() {
        let (taken, generated) = leading_unit(&parts[at..]);
        for part in &parts[at..at + taken] {
            out.push_str(if generated { "*" } else { part });
            out.extend(separators.next());
        }
        at += taken;
    }
    out
}

/// How many of the next parts belong together, at least 1, and whether a program generated them: UUIDs, dates, long
/// numbers, hexadecimal hashes.
fn leading_unit(parts: &[&str]) -> (usize, bool) {
    let hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
    let digits = |part: &str, length: usize| part.len() == length && part.bytes().all(|b| b.is_ascii_digit());
    let uuid = [8, 4, 4, 4, 12];
    if parts.len() >= 5 && parts.iter().zip(uuid).all(|(part, length)| part.len() == length && hex(part)) {
        return (5, true);
    }
    if let [year, month, day, ..] = parts
        && digits(year, 4)
        && year.starts_with("20")
        && digits(month, 2)
        && digits(day, 2)
    {
        return (3, true);
    }
    let part = parts[0];
    let (numbers, letters) =
        (part.bytes().any(|b| b.is_ascii_digit()), part.bytes().any(|b| b.is_ascii_alphabetic()));
    let long_number = part.len() >= 6 && numbers && !letters;
    let stamp = part
        .split_once(['T', 't'])
        .is_some_and(|(day, time)| digits(day, 8) && digits(&time.replace(['Z', 'z'], ""), 6));
    (1, long_number || stamp || part.len() >= 7 && hex(part) && numbers && letters)
}

/// A name without the random suffixes that Kubernetes appends (`-x7k2p`, `-5d4f8b7c9-x7k2p`).
fn without_suffix(name: &str) -> &str {
    const ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";
    let random = |part: &str| {
        (part.len() == 5 || part.len() == 10 || part.len() == 9)
            && part.chars().all(|c| ALPHABET.contains(c))
            && part.bytes().any(|b| b.is_ascii_digit())
    };
    let mut name = name;
    while let Some((head, last)) = name.rsplit_once('-').filter(|(_, last)| *last == "*" || random(last)) {
        let _ = last;
        name = head;
    }
    name
}

/// An image without its digest, and without a tag that a build made up.
fn image(image: &str) -> String {
    let image = image.split('@').next().unwrap_or_default();
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => {
            format!("{repository}:{}", without_generated_parts(tag, ""))
        }
        _ => image.to_owned(),
    }
}

/// The readable part of a profile's name: the script, else the module, else the image.
fn stem(words: &[String], image: &str) -> String {
    let script = words.iter().find_map(|word| word.strip_suffix(".py").or_else(|| word.strip_suffix(".sh")));
    let module = || words.windows(2).find(|pair| pair[0] == "-m").map(|pair| pair[1].as_str());
    let image = image.split('@').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let image = image.split(':').next().unwrap_or_default();
    let found = script.or_else(module).unwrap_or(image);
    let last = found.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let clean: String =
        last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(MAX_STEM).collect();
    let clean = clean.trim_matches('-');
    if clean.is_empty() { "program".into() } else { clean.to_owned() }
}

fn bounded(text: &str) -> String {
    let mut end = text.len().min(MAX_DESCRIPTION);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
