//! Exit statuses, in one place.

use std::process::ExitCode;

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, also after a signal with everything drained, or when nobody reads the output.
    Done,
    /// A failure while running.
    Failed,
    /// Wrong usage or configuration; nothing was started.
    Usage,
    /// `exec`: the command's own status, or 126, 127, 128+n as shells give them.
    Command(u8),
}

impl Exit {
    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
