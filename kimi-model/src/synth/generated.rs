//! Files of a synthetic model that exist nowhere: their bytes are computed when they are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_paging::{Backend, Error, Source};

use super::random::{Stream, Tables};
use super::tensor::{GRAIN, Tensor};

/// A safetensors file that is computed.
#[derive(Debug)]
pub(super) struct Generated {
    name: PathBuf,
    header: Vec<u8>,
    tensors: Vec<Tensor>,
    /// Where each tensor begins, and where the last one ends.
    starts: Vec<u64>,
    seed: u64,
    tables: Arc<Tables>,
}

impl Generated {
    /// The file of these tensors, one behind the other after `header`.
    pub(super) fn new(
        name: PathBuf,
        header: Vec<u8>,
        tensors: Vec<Tensor>,
        seed: u64,
        tables: Arc<Tables>,
    ) -> Self {
        let mut end = header.len() as u64;
        let mut starts = vec![end];
        for tensor in &tensors {
            end += tensor.bytes();
            starts.push(end);
        }
        Self { name, header, tensors, starts, seed, tables }
    }

    /// The tensors that have some of the bytes before `end`, from the one that has byte `offset` on, each with its beginning.
    fn tensors_in(&self, offset: u64, end: u64) -> impl Iterator<Item = (&Tensor, u64)> {
        let first = self.starts.partition_point(|&start| start <= offset).saturating_sub(1);
        let tensors = self.tensors.iter().zip(&self.starts).skip(first);
        tensors.map(|(tensor, &start)| (tensor, start)).take_while(move |(_, start)| *start < end)
    }
}

impl Source for Generated {
    fn name(&self) -> &Path {
        &self.name
    }

    fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let expected = buf.len() as u64;
        let found = self.len().saturating_sub(offset).min(expected);
        if found < expected {
            return Err(Error::ShortRead { path: self.name.clone(), offset, expected, found });
        }
        buf.fill(0);
        let head = usize::try_from(offset).ok().and_then(|offset| self.header.get(offset..)).unwrap_or(&[]);
        let len = head.len().min(buf.len());
        buf[..len].copy_from_slice(&head[..len]);
        let end = offset + expected;
        for (tensor, start) in self.tensors_in(offset, end) {
            let stream = Stream::new(self.seed, &tensor.name);
            for written in &tensor.written {
                let from = (start + written.start).max(offset);
                let to = (start + written.end).min(end);
                if from < to {
                    let out = &mut buf[(from - offset) as usize..(to - offset) as usize];
                    fill(tensor, stream, &self.tables, from - start, out);
                }
            }
        }
        Ok(())
    }

    fn backend(&self) -> Backend {
        Backend::Pread
    }

    fn data_end(&self, offset: u64, len: u64) -> u64 {
        let end = offset.saturating_add(len);
        let mut last = (self.header.len() as u64).min(end);
        for (tensor, start) in self.tensors_in(offset, end) {
            for written in &tensor.written {
                if start + written.start < end {
                    last = last.max((start + written.end).min(end));
                }
            }
        }
        last.max(offset)
    }
}

/// Computes the bytes of a tensor from `first` on, which may begin and end inside of a grain.
fn fill(tensor: &Tensor, stream: Stream, tables: &Tables, first: u64, out: &mut [u8]) {
    let (end, mut at) = (first + out.len() as u64, first);
    while at < end {
        let inside = at % GRAIN;
        let whole = (end - at) / GRAIN * GRAIN;
        let part = &mut out[(at - first) as usize..];
        if inside == 0 && whole > 0 {
            tensor.compute(stream, tables, at, &mut part[..whole as usize]);
            at += whole;
            continue;
        }
        let mut grain = [0; GRAIN as usize];
        let len = (tensor.bytes() - (at - inside)).min(GRAIN);
        tensor.compute(stream, tables, at - inside, &mut grain[..len as usize]);
        let wanted = inside..len.min(inside + end - at);
        part[..(wanted.end - wanted.start) as usize]
            .copy_from_slice(&grain[wanted.start as usize..wanted.end as usize]);
        at += wanted.end - wanted.start;
    }
}

#[cfg(test)]
mod tests {
    use kimi_paging::Dtype;

    use super::super::tensor::Fill;
    use super::*;

    fn file() -> Generated {
        let normal = |shape: &[usize], dtype| {
            let count = shape.iter().product::<usize>() as u64;
            let fill = Fill::Normal { mean: 1.0, std: 0.5, count };
            Tensor::new(format!("{shape:?}"), dtype, shape, fill)
        };
        let mut sparse = normal(&[40, 33], Dtype::Bf16);
        sparse.keep([0..100, 640..700]);
        let pair = Tensor::new("pair".to_owned(), Dtype::I32, &[2], Fill::Pair([3, -4]));
        let tensors = vec![normal(&[7, 9], Dtype::F32), sparse, normal(&[5], Dtype::Bf16), pair];
        Generated::new("model".into(), vec![b'h'; 72], tensors, 3, Arc::new(Tables::new()))
    }

    fn read(file: &Generated, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xaa; len];
        file.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_part_of_a_file_is_that_of_the_whole() {
        let file = file();
        let whole = read(&file, 0, file.len() as usize);
        assert!(whole.starts_with(&[b'h'; 72]) && whole.ends_with(&[3, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff]));
        for offset in 0..whole.len() {
            for len in [1, 2, 7, 64, 130, 1000].into_iter().filter(|len| offset + len <= whole.len()) {
                assert_eq!(read(&file, offset as u64, len), whole[offset..offset + len], "{offset} {len}");
            }
        }
        assert!(matches!(file.read_at(file.len() - 1, &mut [0; 2]), Err(Error::ShortRead { found: 1, .. })));
    }

    #[test]
    fn behind_the_end_of_the_data_there_are_zeros() {
        let file = file();
        let whole = read(&file, 0, file.len() as usize);
        for offset in (0..whole.len()).step_by(13) {
            for len in
                [1, 64, 500, whole.len() - offset].into_iter().filter(|len| offset + len <= whole.len())
            {
                let end = file.data_end(offset as u64, len as u64) as usize;
                assert!((offset..=offset + len).contains(&end));
                assert!(whole[end..offset + len].iter().all(|&byte| byte == 0), "{offset} {len}");
            }
        }
        // The sparse matrix begins behind 72 and 252 bytes.
        assert_eq!(file.data_end(324, 2640), 324 + 704);
        assert_eq!(file.data_end(324 + 704, 1000), 324 + 704);
    }
}
