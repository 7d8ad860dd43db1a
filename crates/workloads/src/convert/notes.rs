//! What a conversion lost or changed.

/// How much a note matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A person must see to it: the TrainingJob does not do what the job did.
    Lost,
    /// The TrainingJob does the same in another way.
    Changed,
}

impl Level {
    /// In a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Changed => "changed",
        }
    }
}

/// One thing that was lost or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// How much it matters.
    pub level: Level,
    /// Field of the file, or option of the script.
    pub field: String,
    /// What became of it, and what to do.
    pub text: String,
}

/// Most notes that are kept of one job.
const MAX_NOTES: usize = 200;

/// Notes of one job, in order.
#[derive(Debug, Default)]
pub struct Notes(Vec<Note>);

impl Notes {
    /// Something a person must see to.
    pub fn lost(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.add(Level::Lost, field.into(), text.into());
    }

    /// Something that is done in another way.
    pub fn changed(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.add(Level::Changed, field.into(), text.into());
    }

    fn add(&mut self, level: Level, field: String, text: String) {
        let note = Note { level, field, text };
        if self.0.len() < MAX_NOTES && !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    /// All of them, the lost things first.
    pub fn into_vec(mut self) -> Vec<Note> {
        self.0.sort_by_key(|note| note.level);
        self.0
    }
}
