//! What a killed writer left at the end of a file: found, so that an appending start can cut it.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
};

use super::config::Compression;

/// Length of the part of `file` that is whole: lines, or compressed frames (whose content always
/// ends with a line).
pub(super) fn whole_length(file: &mut File, compression: Compression) -> io::Result<u64> {
    match compression {
        Compression::None => whole_lines(file),
        Compression::Zstd => whole_frames(file),
    }
}

fn whole_lines(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.by_ref().take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|b| *b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Walks the frames by their headers (RFC 8878), reading a few bytes of each block.
fn whole_frames(file: &mut File) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0))?;
    let mut whole = 0;
    while let Some(end) = frame_end(file, whole, length)? {
        whole = end;
    }
    Ok(whole)
}

/// Where the frame that starts at `at` ends; `None` where it is cut short or is no frame.
fn frame_end(file: &mut File, at: u64, length: u64) -> io::Result<Option<u64>> {
    const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
    let Some([m0, m1, m2, m3, descriptor]) = read_at::<5>(file, at, length)? else {
        return Ok(None);
    };
    if [m0, m1, m2, m3] != MAGIC {
        return Ok(None);
    }
    let single_segment = descriptor & 0x20 != 0;
    let window = u64::from(!single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = match descriptor >> 6 {
        0 => u64::from(single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let mut at = at + 5 + window + dictionary + content;
    loop {
        let Some(header) = read_at::<3>(file, at, length)? else { return Ok(None) };
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let run_length = (header >> 1) & 3 == 1;
        at += 3 + if run_length { 1 } else { u64::from(header >> 3) };
        if header & 1 == 1 {
            break;
        }
    }
    let end = at + if descriptor & 4 != 0 { 4 } else { 0 };
    Ok((end <= length).then_some(end))
}

fn read_at<const N: usize>(file: &mut File, at: u64, length: u64) -> io::Result<Option<[u8; N]>> {
    if at + N as u64 > length {
        return Ok(None);
    }
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[track_caller]
    fn check(content: &[u8], compression: Compression, expected: usize) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        assert_eq!(whole_length(&mut file, compression).unwrap(), expected as u64);
    }

    #[test]
    fn lines() {
        check(b"", Compression::None, 0);
        check(b"a\nb\n", Compression::None, 4);
        check(b"a\nb", Compression::None, 2);
        check(b"ab", Compression::None, 0);
        let long = [b"a\n".as_slice(), &vec![b'x'; 200_000]].concat();
        check(&long, Compression::None, 2);
    }

    #[test]
    fn frames() {
        let mut frames = Vec::new();
        let mut ends = vec![0];
        // Empty, single-segment and large frames with several blocks have different headers.
        for size in [0, 10, 300, 70_000, 500_000] {
            let text: Vec<u8> = (0..size).map(|i: u32| (i.wrapping_mul(i) >> 7) as u8).collect();
            frames.extend(zstd::bulk::compress(&text, 3).unwrap());
            ends.push(frames.len());
        }
        frames.extend(zstd::encode_all(&vec![7; 300_000][..], 3).unwrap());
        ends.push(frames.len());
        for cut in (0..=frames.len()).step_by(977).chain(ends.clone()) {
            let whole = ends.iter().copied().filter(|e| *e <= cut).max().unwrap();
            check(&frames[..cut], Compression::Zstd, whole);
        }
    }
}
