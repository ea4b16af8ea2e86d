//! The table on a terminal: one frame that each window replaces, with whatever is logged to the
//! same terminal scrolling by above it.
//!
//! A log line written straight to the terminal would land inside the frame, so the agent's log
//! subscriber writes through [`LogWriter`]: it takes the frame away, writes the line, and puts the
//! frame back, in one write. Where there is no frame it is plain standard error.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    sync::{Mutex, PoisonError},
};

use unicode_width::UnicodeWidthStr;

use super::{table::Layout, write_patiently};

/// Lines a frame takes besides its workloads, at most; what is left of the terminal's height is
/// theirs. Zones beyond what fits make the frame scroll, which is still readable.
const FRAME_LINES: usize = 12;

/// The frame that is on the terminal now.
#[derive(Debug, Default)]
struct Frame {
    text: Vec<u8>,
    /// Width of each of its lines, to know where they wrapped after a resize.
    widths: Vec<usize>,
}

/// There is one terminal, and logs come from anywhere in the process.
static FRAME: Mutex<Option<Frame>> = Mutex::new(None);

/// The terminal that the table is drawn on.
#[derive(Debug)]
pub struct Screen {
    out: File,
    styled: bool,
}

/// Whether a terminal is to be written to in styles: not where its user says otherwise.
pub fn styles() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

impl Screen {
    /// Draws on the terminal behind `out`.
    pub fn open(out: File) -> Self {
        Self { out, styled: styles() }
    }

    /// How a table must look to fit on the terminal as it is now.
    pub fn layout(&self, top: Option<u32>) -> Layout {
        let (width, height) = size(&self.out);
        let room = u32::try_from(height.saturating_sub(FRAME_LINES).max(3)).unwrap_or(u32::MAX);
        Layout { width, top: Some(top.unwrap_or(u32::MAX).min(room)), styled: self.styled }
    }

    /// Replaces the frame.
    pub fn draw(&mut self, text: &[u8]) -> io::Result<()> {
        let mut frame = FRAME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = erase(frame.as_ref(), size(&self.out).0);
        bytes.extend_from_slice(text);
        let widths = String::from_utf8_lossy(text).lines().map(visible_width).collect();
        *frame = Some(Frame { text: text.to_vec(), widths });
        write_patiently(&mut self.out, &bytes)
    }

    /// Leaves the last frame where it is; logs go below it from now on.
    pub fn close(&mut self) {
        *FRAME.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

/// Standard error for log lines, keeping them above the table where both are one terminal.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr();
        let frame = FRAME.lock().unwrap_or_else(PoisonError::into_inner);
        match &*frame {
            Some(frame) if stderr.is_terminal() => {
                let mut bytes = erase(Some(frame), size(&stderr).0);
                bytes.extend_from_slice(line);
                bytes.extend_from_slice(&frame.text);
                stderr.write_all(&bytes)?;
            }
            _ => stderr.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The control sequence that takes `frame` off a terminal of this width.
fn erase(frame: Option<&Frame>, width: usize) -> Vec<u8> {
    let Some(frame) = frame else { return Vec::new() };
    let lines: usize = frame.widths.iter().map(|w| w.div_ceil(width.max(1)).max(1)).sum();
    if lines == 0 { Vec::new() } else { format!("\r\x1b[{lines}A\x1b[J").into_bytes() }
}

fn size(terminal: impl std::os::fd::AsFd) -> (usize, usize) {
    match rustix::termios::tcgetwinsize(terminal) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            (usize::from(size.ws_col), usize::from(size.ws_row))
        }
        _ => (80, 24),
    }
}

/// Columns that a line takes, without the styles in it.
fn visible_width(line: &str) -> usize {
    let mut width = 0;
    let mut rest = line;
    while let Some(at) = rest.find('\x1b') {
        width += rest[..at].width();
        rest = rest[at..].find('m').map_or("", |end| &rest[at + end + 1..]);
    }
    width + rest.width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_away_whole_even_after_a_resize() {
        let frame = Frame { text: Vec::new(), widths: vec![80, 10, 0] };
        assert_eq!(erase(Some(&frame), 80), b"\r\x1b[3A\x1b[J");
        assert_eq!(erase(Some(&frame), 40), b"\r\x1b[4A\x1b[J");
        assert_eq!(erase(None, 80), b"");
    }

    #[test]
    fn styles_take_no_columns() {
        assert_eq!(visible_width("\x1b[1mPID\x1b[0m x"), 5);
        assert_eq!(visible_width("日本"), 4);
    }
}
