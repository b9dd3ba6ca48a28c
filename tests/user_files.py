"""Ways in which scripts write, move and remove files, each as a script's own lines.

Each runs in a folder that `furnish` made. What a way leaves in `seen` is what the script reads
back: under a forecast it must be what it is without one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy as np
import torch

#: Begins each script.
PREAMBLE = """
import atexit, bz2, codecs, configparser, contextlib, csv, fileinput, glob, gzip, io, json, logging
import logging.handlers, lzma, mmap, multiprocessing, os, pickle, shelve, shutil, sqlite3
import subprocess, sys, tarfile, tempfile, threading, warnings, weakref, zipfile
from pathlib import Path
import numpy as np
import torch

class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2
warnings.simplefilter("ignore")
"""
#: A module that scripts import.
WORKER = """
log = open('log.csv', 'a')

def work():
    open('notes.txt', 'a').write('child')
    open('new.txt', 'w').write('n')
"""
#: Spawned children import the script.
CUDA_WORK = "if __name__ == '__main__': torch.ones(2, device='cuda')\n"


def furnish(folder: Path) -> None:
    """A training run's folder as a user has it."""
    for number in (1, 2, 3):
        checkpoint = folder / f"checkpoint-{number}"
        checkpoint.mkdir(parents=True)
        torch.save({"step": number}, checkpoint / "model.pt")
        (checkpoint / "state.json").write_text(f'{{"step": {number}}}')
    (folder / "notes.txt").write_text("precious notes\n")
    (folder / "log.csv").write_text("step,loss\n1,2.0\n")
    (folder / "data.bin").write_bytes(bytes(range(64)))
    (folder / "empty").mkdir()
    np.save(folder / "array.npy", np.arange(4))
    torch.save({"a": torch.arange(3)}, folder / "model.pt")
    (folder / "link.txt").symlink_to("notes.txt")
    os.link(folder / "notes.txt", folder / "hard.txt")
    connection = sqlite3.connect(folder / "runs.db")
    connection.execute("create table runs (id)")
    connection.commit()
    connection.close()


PYTHON = {
    "open w": "open('notes.txt', 'w').write('new'); seen = open('notes.txt').read()",
    "open a": "open('notes.txt', 'a').write('new'); seen = open('notes.txt').read()",
    "open r+": "f = open('notes.txt', 'r+'); f.write('NEW'); f.close(); seen = "
    "open('notes.txt').read()",
    "open w+": "f = open('notes.txt', 'w+'); f.write('x'); f.seek(0); seen = f.read(); f.close()",
    "open wb": "open('data.bin', 'wb').write(b'new'); seen = open('data.bin', 'rb').read()",
    "open ab": "open('data.bin', 'ab').write(b'new'); seen = open('data.bin', 'rb').read()",
    "open r+b": "f = open('data.bin', 'r+b'); f.seek(3); f.write(b'X'); f.close()\n"
    "seen = open('data.bin', 'rb').read()",
    "open x on what stands": "try:\n    open('notes.txt', 'x')\n"
    "except FileExistsError as error:\n    seen = (error.errno, error.filename)",
    "a new file": "open('new.txt', 'w').write('new'); seen = (open('new.txt').read(), "
    "sorted(os.listdir()))",
    "write_text": "Path('notes.txt').write_text('new'); seen = Path('notes.txt').read_text()",
    "write_bytes": "Path('data.bin').write_bytes(b'new'); seen = Path('data.bin').read_bytes()",
    "json.dump": "json.dump({'a': 1}, open('checkpoint-1/state.json', 'w'))\n"
    "seen = json.load(open('checkpoint-1/state.json'))",
    "csv": "csv.writer(open('log.csv', 'a', newline='')).writerow([2, 1.5])\n"
    "seen = list(csv.reader(open('log.csv')))",
    "numpy.save": "np.save('array.npy', np.ones(2)); seen = np.load('array.npy').tolist()",
    "numpy.savez": "np.savez('all.npz', a=np.ones(2)); seen = np.load('all.npz')['a'].tolist()",
    "numpy.savetxt": "np.savetxt('log.csv', np.ones(2)); seen = open('log.csv').read()",
    "numpy.memmap": "m = np.memmap('data.bin', np.uint8, 'r+'); m[0] = 99; m.flush(); del m\n"
    "seen = open('data.bin', 'rb').read()",
    "tofile": "np.ones(3, np.uint8).tofile('data.bin'); seen = open('data.bin', 'rb').read()",
    "mmap": "f = open('data.bin', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0] = 99; m.flush()\n"
    "m.close(); f.close(); seen = open('data.bin', 'rb').read()",
    "pandas to_csv": "import pandas; pandas.DataFrame({'a': [1]}).to_csv('log.csv')\n"
    "seen = open('log.csv').read()",
    "logging": "h = logging.FileHandler('notes.txt', mode='w'); log = logging.getLogger('way')\n"
    "log.addHandler(h); log.warning('hello'); log.removeHandler(h); h.close()\n"
    "seen = open('notes.txt').read()",
    "os.open": "d = os.open('notes.txt', os.O_WRONLY | os.O_TRUNC); os.write(d, b'new'); "
    "os.close(d)\n"
    "seen = open('notes.txt').read()",
    "os.open with a folder's descriptor": "f = os.open('checkpoint-1', os.O_RDONLY)\n"
    "d = os.open('state.json', os.O_WRONLY | os.O_APPEND, dir_fd=f); os.write(d, b'new')\n"
    "os.close(d); os.close(f); seen = open('checkpoint-1/state.json').read()",
    "io.FileIO": "f = io.FileIO('data.bin', 'r+'); f.write(b'XYZ'); f.close()\n"
    "seen = open('data.bin', 'rb').read()",
    "io.open": "io.open('notes.txt', 'w').write('new'); seen = io.open('notes.txt').read()",
    "codecs.open": "f = codecs.open('notes.txt', 'w', 'utf-8'); f.write('\\xe9'); f.close()\n"
    "seen = open('notes.txt', encoding='utf-8').read()",
    "os.truncate": "os.truncate('data.bin', 5); seen = os.path.getsize('data.bin')",
    "file.truncate": "f = open('data.bin', 'r+b'); f.truncate(5); f.close()\n"
    "seen = os.stat('data.bin').st_size",
    "os.ftruncate": "d = os.open('data.bin', os.O_RDWR); os.ftruncate(d, 5); os.close(d)\n"
    "seen = os.stat('data.bin').st_size",
    "chmod": "os.chmod('notes.txt', 0o600); seen = oct(os.stat('notes.txt').st_mode)",
    "Path.chmod": "Path('notes.txt').chmod(0o640); seen = oct(Path('notes.txt').stat().st_mode)",
    "fchmod": "f = open('notes.txt'); os.fchmod(f.fileno(), 0o600); f.close()\n"
    "seen = oct(os.stat('notes.txt').st_mode)",
    "utime": "os.utime('notes.txt', (1, 1)); seen = os.stat('notes.txt').st_mtime",
    "touch": "Path('notes.txt').touch(); seen = os.stat('notes.txt').st_mtime > 1e9",
    "zipfile a": "zipfile.ZipFile('new.zip', 'w').writestr('a', 'a')\n"
    "with zipfile.ZipFile('new.zip', 'a') as z:\n    z.writestr('b', 'b')\n"
    "seen = zipfile.ZipFile('new.zip').namelist()",
    "tarfile": "with tarfile.open('notes.txt', 'w') as t:\n    t.add('log.csv')\n"
    "seen = tarfile.open('notes.txt').getnames()",
    "gzip": "gzip.open('notes.txt', 'wb').write(b'new'); seen = gzip.open('notes.txt').read()",
    "bz2": "bz2.open('notes.txt', 'wb').write(b'new'); seen = bz2.open('notes.txt').read()",
    "lzma": "lzma.open('notes.txt', 'wb').write(b'new'); seen = lzma.open('notes.txt').read()",
    "pickle": "pickle.dump([1], open('data.bin', 'wb')); seen = pickle.load(open('data.bin', "
    "'rb'))",
    "shelve": "with shelve.open('shelf') as s:\n    s['a'] = 1\n"
    "with shelve.open('shelf') as s:\n    seen = dict(s)",
    "through a link": "open('link.txt', 'a').write('new')\n"
    "seen = (open('notes.txt').read(), os.path.islink('link.txt'))",
    "through a hard link": "open('hard.txt', 'a').write('new'); seen = open('notes.txt').read()",
    "NamedTemporaryFile here": "with tempfile.NamedTemporaryFile('w', dir='.') as f:\n"
    "    f.write('x'); seen = os.path.exists(f.name)\nseen = (seen, os.path.exists(f.name))",
    "TemporaryFile here": "f = tempfile.TemporaryFile(dir='.'); f.write(b'x'); f.seek(0)\n"
    "seen = f.read(); f.close()",
    "TemporaryDirectory here": "with tempfile.TemporaryDirectory(dir='.') as d:\n"
    "    open(d + '/x', 'w').write('x'); seen = os.listdir(d)\nseen = (seen, os.path.exists(d))",
    "another working folder": "os.chdir('checkpoint-1'); open('state.json', 'w').write('new')\n"
    "os.chdir('..'); seen = open('checkpoint-1/state.json').read()",
    "print to a file": "print('new', file=open('notes.txt', 'a')); seen = open('notes.txt').read()",
    "fileinput in place": "for line in fileinput.input('notes.txt', inplace=True):\n"
    "    print(line.upper(), end='')\nseen = open('notes.txt').read()",
    "configparser": "c = configparser.ConfigParser(); c['a'] = {'b': '1'}; "
    "c.write(open('notes.txt', 'w'))\n"
    "seen = open('notes.txt').read()",
    "SummaryWriter": "from torch.utils.tensorboard import SummaryWriter\n"
    "w = SummaryWriter('checkpoint-1'); w.add_scalar('a', 1.0); w.close()\n"
    "seen = any('tfevents' in name for name in os.listdir('checkpoint-1'))",
    "torch.save into an open file": "with open('model.pt', 'wb') as f:\n"
    "    torch.save({'a': torch.ones(2)}, f)\nseen = torch.load('model.pt')['a'].tolist()",
}

C_LIBRARIES = {
    "torch.save": "torch.save({'a': torch.ones(2)}, 'model.pt')\n"
    "seen = torch.load('model.pt')['a'].tolist()",
    "torch.save, new": "torch.save({'a': torch.ones(2)}, 'new.pt')\n"
    "seen = (torch.load('new.pt')['a'].tolist(), os.path.exists('new.pt'))",
    "torch.save of a tensor on the GPU": "torch.save(torch.ones(4, 2, device='cuda'), 'model.pt')\n"
    "seen = tuple(torch.load('model.pt', map_location='cpu').shape)",
    "torch.save, the old format": "torch.save({'a': torch.ones(2)}, 'model.pt',"
    " _use_new_zipfile_serialization=False)\nseen = torch.load('model.pt')['a'].tolist()",
    "torch.save to a path of bytes above ASCII": "torch.save({'a': torch.ones(2)}, "
    "'mod\\xe8le.pt')\n"
    "seen = torch.load('mod\\xe8le.pt')['a'].tolist()",
    "PyTorchFileWriter": "w = torch._C.PyTorchFileWriter('model.pt'); w.write_record('r', "
    "b'abc', 3)\n"
    "w.write_end_of_file(); seen = torch._C.PyTorchFileReader('model.pt').get_record('r')",
    "torch.jit.save": "torch.jit.save(torch.jit.script(Twice()), 'model.pt')\n"
    "seen = torch.jit.load('model.pt')(torch.ones(2)).tolist()",
    "ScriptModule.save": "torch.jit.script(Twice()).save('model.pt')\n"
    "seen = torch.jit.load('model.pt')(torch.ones(2)).tolist()",
    "torch.export.save": "torch.export.save(torch.export.export(Twice(), (torch.ones(2),)),"
    " 'model.pt2')\nseen = torch.export.load('model.pt2').module()(torch.ones(2)).tolist()",
    "distributed checkpoint": "from torch.distributed import checkpoint as dcp\n"
    "dcp.save({'a': torch.ones(2)}, checkpoint_id='sharded', no_dist=True)\n"
    "state = {'a': torch.zeros(2)}; dcp.load(state, checkpoint_id='sharded', no_dist=True)\n"
    "seen = state['a'].tolist()",
    "distributed checkpoint over another": "from torch.distributed import checkpoint as dcp\n"
    "dcp.save({'a': torch.ones(2)}, checkpoint_id='checkpoint-1', no_dist=True)\n"
    "dcp.save({'a': torch.ones(2) * 3}, checkpoint_id='checkpoint-1', no_dist=True)\n"
    "state = {'a': torch.zeros(2)}; dcp.load(state, checkpoint_id='checkpoint-1', no_dist=True)\n"
    "seen = (state['a'].tolist(), sorted(os.listdir('checkpoint-1')))",
    "a mapped storage": "s = torch.UntypedStorage.from_file('data.bin', True, 64); s[0] = 99; "
    "del s\n"
    "seen = open('data.bin', 'rb').read()",
    "torch.from_file": "t = torch.from_file('data.bin', True, 64, dtype=torch.uint8); t[0] = 99; "
    "del t\n"
    "seen = open('data.bin', 'rb').read()",
    "torch.package": "from torch.package import PackageExporter, PackageImporter\n"
    "with PackageExporter('model.pt') as e:\n    e.save_text('p', 'r', 'text')\n"
    "seen = PackageImporter('model.pt').load_text('p', 'r')",
    "safetensors, torch": "from safetensors.torch import save_file, load_file\n"
    "save_file({'a': torch.ones(2)}, 'data.bin'); seen = load_file('data.bin')['a'].tolist()",
    "safetensors, numpy": "from safetensors.numpy import save_file, load_file\n"
    "save_file({'a': np.ones(2)}, 'data.bin'); seen = load_file('data.bin')['a'].tolist()",
    "safetensors.serialize_file": "import safetensors; from safetensors.torch import save_model\n"
    "save_model(torch.nn.Linear(2, 2), 'data.bin')\n"
    "seen = sorted(safetensors.safe_open('data.bin', 'pt').keys())",
    "safetensors in a new folder": "from safetensors.torch import save_file, load_file\n"
    "os.mkdir('new'); save_file({'a': torch.ones(2)}, 'new/a')\n"
    "seen = (load_file('new/a')['a'].tolist(), os.listdir('new'))",
    "a new mapped storage": "s = torch.UntypedStorage.from_file('new.bin', True, 64); s[0] = 99; "
    "del s\n"
    "seen = (open('new.bin', 'rb').read(), 'new.bin' in os.listdir())",
    "memory mapped loading": "torch.save({'a': torch.ones(2)}, 'model.pt')\n"
    "seen = torch.load('model.pt', mmap=True)['a'].tolist()",
}

MOVES_AND_REMOVALS = {
    "os.remove": "os.remove('notes.txt'); seen = (os.path.exists('notes.txt'), "
    "sorted(os.listdir()))",
    "os.unlink": "os.unlink('notes.txt'); seen = sorted(e.name for e in os.scandir())",
    "Path.unlink": "Path('notes.txt').unlink(); seen = sorted(p.name for p in Path().iterdir())",
    "remove with a descriptor": "d = os.open('checkpoint-1', os.O_RDONLY)\n"
    "os.unlink('model.pt', dir_fd=d); seen = os.listdir(d); os.close(d)",
    "remove twice": "os.remove('notes.txt')\ntry:\n    os.remove('notes.txt')\n"
    "except FileNotFoundError as error:\n    seen = (error.errno, error.filename)",
    "remove, then write again": "os.remove('notes.txt'); open('notes.txt', 'x').write('again')\n"
    "seen = (open('notes.txt').read(), open('hard.txt').read())",
    "os.rmdir": "os.rmdir('empty'); seen = os.path.isdir('empty')",
    "rmdir of what is not empty": "try:\n    os.rmdir('checkpoint-1')\n"
    "except OSError as error:\n    seen = error.errno",
    "removedirs": "os.makedirs('a/b/c'); os.removedirs('a/b/c'); seen = os.path.exists('a')",
    "shutil.rmtree": "shutil.rmtree('checkpoint-1')\n"
    "seen = (glob.glob('checkpoint-*'), os.path.exists('checkpoint-1/model.pt'))",
    "rmtree of a Path": "shutil.rmtree(Path('checkpoint-1').absolute()); seen = "
    "sorted(glob.glob('c*'))",
    "rmtree, errors ignored": "shutil.rmtree('checkpoint-1', ignore_errors=True)\n"
    "seen = os.path.lexists('checkpoint-1')",
    "rmtree, then the folder again": "shutil.rmtree('checkpoint-1'); os.makedirs('checkpoint-1')\n"
    "open('checkpoint-1/x', 'w').write('x'); seen = os.listdir('checkpoint-1')",
    "rmtree, then a file of it again, and gone again": "shutil.rmtree('checkpoint-1')\n"
    "os.makedirs('checkpoint-1'); open('checkpoint-1/state.json', 'w').write('x')\n"
    "os.remove('checkpoint-1/state.json'); seen = os.listdir('checkpoint-1')",
    "rmtree, then a file of it again, and moved": "shutil.rmtree('checkpoint-1')\n"
    "os.makedirs('checkpoint-1'); open('checkpoint-1/state.json', 'w').write('x')\n"
    "os.replace('checkpoint-1/state.json', 'checkpoint-1/s')\n"
    "seen = (os.listdir('checkpoint-1'), open('checkpoint-1/s').read())",
    "keep the last two": "for n in range(4, 7):\n    os.makedirs(f'checkpoint-{n}')\n"
    "    torch.save({'step': n}, f'checkpoint-{n}/model.pt')\n"
    "    for old in sorted(glob.glob('checkpoint-*'))[:-2]:\n        shutil.rmtree(old)\n"
    "seen = {p: torch.load(p + '/model.pt') for p in sorted(glob.glob('checkpoint-*'))}",
    "os.rename": "os.rename('notes.txt', 'moved.txt')\n"
    "seen = (os.path.exists('notes.txt'), open('moved.txt').read())",
    "os.replace": "os.replace('log.csv', 'notes.txt'); seen = (open('notes.txt').read(), "
    "os.listdir())",
    "Path.rename": "Path('notes.txt').rename('moved.txt'); seen = Path('moved.txt').read_text()",
    "Path.replace": "Path('log.csv').replace('notes.txt'); seen = Path('notes.txt').read_text()",
    "rename of a folder": "os.rename('checkpoint-1', 'best')\n"
    "seen = (torch.load('best/model.pt'), sorted(os.listdir('best')), "
    "os.path.exists('checkpoint-1'))",
    "rename of a folder, then write in it": "os.rename('checkpoint-1', 'best')\n"
    "open('best/state.json', 'w').write('new'); open('best/more', 'w').write('m')\n"
    "seen = sorted((str(p), p.read_bytes()) for p in Path('best').iterdir())",
    "save beside, then replace": "torch.save({'a': 5}, 'model.pt.tmp')\n"
    "os.replace('model.pt.tmp', 'model.pt'); seen = (torch.load('model.pt'), "
    "os.path.exists('model.pt.tmp'))",
    "text beside, then replace": "open('notes.tmp', 'w').write('new'); os.replace('notes.tmp', "
    "'notes.txt')\n"
    "seen = open('notes.txt').read()",
    "a named temporary file, then replace": "with tempfile.NamedTemporaryFile(dir='.', "
    "delete=False) as f:\n"
    "    torch.save({'a': 5}, f)\nos.replace(f.name, 'model.pt')\n"
    "seen = (torch.load('model.pt'), os.path.exists(f.name))",
    "backup by rename": "os.rename('notes.txt', 'notes.bak'); open('notes.txt', 'w').write('new')\n"
    "seen = (open('notes.txt').read(), open('notes.bak').read())",
    "rotation of a log": "os.replace('log.csv', 'log.1.csv'); open('log.csv', 'w').write('fresh')\n"
    "seen = sorted((p.name, p.read_text()) for p in Path().glob('log*'))",
    "logging.handlers": "h = logging.handlers.RotatingFileHandler('notes.txt', maxBytes=10, "
    "backupCount=1)\n"
    "log = logging.getLogger('rotating'); log.addHandler(h); log.warning('x' * 20); "
    "log.removeHandler(h)\n"
    "h.close(); seen = sorted((p.name, p.read_text()) for p in Path().glob('notes*'))",
    "shutil.move": "shutil.move('notes.txt', 'empty'); seen = (os.listdir('empty'), "
    "os.path.exists('notes.txt'))",
    "shutil.move of a folder": "shutil.move('checkpoint-1', 'empty')\n"
    "seen = sorted(os.listdir('empty/checkpoint-1'))",
    "shutil.copyfile over": "shutil.copyfile('log.csv', 'notes.txt'); seen = "
    "open('notes.txt').read()",
    "shutil.copy2 over": "shutil.copy2('log.csv', 'notes.txt')\n"
    "seen = os.stat('notes.txt').st_mtime_ns == os.stat('log.csv').st_mtime_ns",
    "shutil.copytree over": "shutil.copytree('checkpoint-1', 'checkpoint-2', dirs_exist_ok=True)\n"
    "seen = torch.load('checkpoint-2/model.pt')",
    "a link over a link": "os.remove('link.txt'); os.symlink('log.csv', 'link.txt')\n"
    "seen = (os.readlink('link.txt'), open('link.txt').read())",
    "latest link by rename": "os.symlink('log.csv', 'tmp'); os.replace('tmp', 'link.txt')\n"
    "seen = (os.readlink('link.txt'), os.path.exists('tmp'))",
    "os.link": "os.link('notes.txt', 'second'); open('second', 'a').write('more')\n"
    "seen = open('notes.txt').read()",
    "rename over a folder": "os.rename('checkpoint-1', 'empty'); seen = "
    "sorted(os.listdir('empty'))",
    "walk after removals": "shutil.rmtree('checkpoint-2'); os.remove('checkpoint-1/model.pt')\n"
    "seen = sorted((a, sorted(b), sorted(c)) for a, b, c in os.walk('.'))",
    "os.renames": "os.renames('notes.txt', 'a/b/notes.txt'); seen = open('a/b/notes.txt').read()",
}

# What these print is what they read back; `rc` is what the script ends with.
CHILDREN_AND_EXIT = {
    "a forked child writes": (
        "def work():\n    open('notes.txt', 'a').write('child')\n    open('new.txt', "
        "'w').write('n')\n"
        "p = multiprocessing.get_context('fork').Process(target=work); p.start(); p.join()\n"
        "print(p.exitcode, open('notes.txt').read(), open('new.txt').read())",
        0,
    ),
    "a forked child removes": (
        "def work():\n    shutil.rmtree('checkpoint-1')\n"
        "p = multiprocessing.get_context('fork').Process(target=work); p.start(); p.join()\n"
        "print(p.exitcode, os.path.exists('checkpoint-1'))",
        0,
    ),
    "a spawned child writes": (
        "import worker\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('spawn').Process(target=worker.work)\n"
        "    p.start(); p.join()\n    print(p.exitcode, open('notes.txt').read(), "
        "sorted(os.listdir()))",
        0,
    ),
    "a child of a fork server writes": (
        "import worker\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('forkserver').Process(target=worker.work)\n"
        "    p.start(); p.join()\n    print(p.exitcode, open('notes.txt').read(), "
        "sorted(os.listdir()))",
        0,
    ),
    "a child sees what was written before": (
        "open('notes.txt', 'w').write('before')\nimport worker\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('spawn').Process(target=worker.work)\n"
        "    p.start(); p.join()\n    print(open('notes.txt').read())",
        0,
    ),
    "os.fork": (
        "pid = os.fork()\nif pid == 0:\n    open('notes.txt', 'w').write('child'); os._exit(0)\n"
        "os.waitpid(pid, 0)\nprint(open('notes.txt').read())",
        0,
    ),
    "a forked child that leaves by sys.exit": (
        "pid = os.fork()\nif pid == 0:\n    open('new.txt', 'w').write('child'); sys.exit(0)\n"
        "os.waitpid(pid, 0)\nprint(open('new.txt').read(), os.path.exists('notes.txt'))",
        0,
    ),
    "a pool of processes": (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def work(n):\n    open(f'part-{n}', 'w').write(str(n)); return n\n"
        "with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool:\n"
        "    print(list(pool.map(work, range(4))))\nprint(sorted(glob.glob('part-*')))",
        0,
    ),
    "workers of a DataLoader": (
        "class Data(torch.utils.data.Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, n):\n        open('log.csv', 'a').write(f'{n}\\n'); return n\n"
        "print(sum(int(b.sum()) for b in torch.utils.data.DataLoader(Data(), num_workers=2)))\n"
        "print(sorted(open('log.csv').read().split()))",
        0,
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def work(n): open('log.csv', 'a').write(f'{n}\\n')\n"
        "with ThreadPoolExecutor(4) as pool: list(pool.map(work, range(20)))\n"
        "print(sorted(open('log.csv').read().split()))",
        0,
    ),
    "another program reads what is new": (
        "open('new.txt', 'w').write('for cat')\n"
        "print(subprocess.run(['cat', 'new.txt'], capture_output=True, text=True).stdout)",
        0,
    ),
    "a save in atexit": (
        "atexit.register(lambda: torch.save({'a': 1}, 'model.pt'))\n"
        "atexit.register(lambda: open('notes.txt', 'w').write('at exit'))\nprint('registered')",
        0,
    ),
    "a save in atexit, then sys.exit": (
        "atexit.register(lambda: shutil.rmtree('checkpoint-1'))\nprint('leaving'); sys.exit(0)",
        0,
    ),
    "a finalizer": (
        "class Model: pass\nmodel = Model()\n"
        "weakref.finalize(model, lambda: open('notes.txt', 'w').write('gone'))\nprint('kept')",
        0,
    ),
    "a file left open": (
        "keep = open('notes.txt', 'w'); keep.write('unflushed')\nprint('open')",
        0,
    ),
    "an error after a write": (
        "open('notes.txt', 'w').write('half'); open('new.txt', 'w').write('new')\n"
        "print('writing')\nraise ValueError('stop')",
        3,
    ),
    "a write in finally": (
        "try:\n    raise ValueError('stop')\nfinally:\n"
        "    open('notes.txt', 'w').write('finally'); print(open('notes.txt').read())",
        3,
    ),
    "sys.exit with a status": (
        "open('notes.txt', 'w').write('half'); print('leaving'); sys.exit(5)",
        3,
    ),
    "os._exit": (
        "open('notes.txt', 'w').write('half'); open('new.txt', 'w').write('new')\n"
        "print('leaving', flush=True); os._exit(0)",
        3,
    ),
    "killed": (
        "open('notes.txt', 'w').write('half'); open('new.txt', 'w').write('new')\n"
        "print('dying', flush=True); os.kill(os.getpid(), 9)",
        3,
    ),
    "an excepthook that saves": (
        "sys.excepthook = lambda *error: open('notes.txt', 'w').write('crash')\n"
        "print('failing', flush=True)\nraise ValueError('stop')",
        3,
    ),
    "a handle opened by an import": (
        "import worker\nworker.log.write('line'); "
        "worker.log.flush()\nprint(open('log.csv').read())",
        0,
    ),
}

# What reaches files by neither Python's functions nor the C writers that the overlay knows.
_RUN = (
    "run = lambda line: subprocess.run(line, shell=True, check=True, capture_output=True, "
    "text=True).stdout\n"
)
_LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"

OTHERS = {
    "parquet": "import pyarrow, pyarrow.parquet as pq\n"
    "pq.write_table(pyarrow.table({'a': [1, 2]}), 'log.csv'); seen = "
        "pq.read_table('log.csv').to_pydict()",
    "ParquetWriter": "import pyarrow, pyarrow.parquet as pq; t = pyarrow.table({'a': [1, 2]})\n"
    "with pq.ParquetWriter('log.csv', t.schema) as w:\n    w.write_table(t); w.write_table(t)\n"
    "seen = pq.ParquetFile('log.csv').metadata.num_rows",
    "pandas to_parquet": "import pandas; pandas.DataFrame({'a': [1]}).to_parquet('log.csv')\n"
    "seen = pandas.read_parquet('log.csv')['a'].tolist()",
    "feather": "import pyarrow; from pyarrow import feather\n"
    "feather.write_feather(pyarrow.table({'a': [1]}), 'log.csv'); seen = "
        "os.path.getsize('log.csv')",
    "Arrow's csv": "import pyarrow; from pyarrow import csv as c\n"
    "c.write_csv(pyarrow.table({'a': [1]}), 'log.csv'); seen = open('log.csv').read()",
    "sqlite3": "with contextlib.closing(sqlite3.connect('runs.db')) as c:\n"
    "    c.execute('insert into runs values (7)'); c.commit()\n"
    "with contextlib.closing(sqlite3.connect('runs.db')) as c:\n"
    "    seen = c.execute('select * from runs').fetchall()",
    "sqlite3, new": "with contextlib.closing(sqlite3.connect('new.db')) as c:\n"
    "    c.execute('create table t (x)'); c.commit()\nseen = os.path.exists('new.db')",
    "sqlite3 by URI": "with contextlib.closing(sqlite3.connect('file:runs.db?mode=rw', "
        "uri=True)) as c:\n"
    "    c.execute('drop table runs'); c.commit()\n"
    "    seen = c.execute('select name from sqlite_master').fetchall()",
    "cp": _RUN + "run('cp notes.txt copied.txt'); seen = open('copied.txt').read()",
    "cp over": _RUN + "run('cp log.csv notes.txt'); seen = open('notes.txt').read()",
    "cp -a of a folder": _RUN + "run('cp -a checkpoint-1 copied')\n"
    "seen = (torch.load('copied/model.pt'), os.stat('copied/state.json').st_mtime == "
    "os.stat('checkpoint-1/state.json').st_mtime)",
    "rm": _RUN + "run('rm notes.txt'); seen = os.path.exists('notes.txt')",
    "rm -r": _RUN + "run('rm -r checkpoint-1'); seen = os.path.exists('checkpoint-1')",
    "rm -r, then mkdir": _RUN + "run('rm -r checkpoint-1; mkdir checkpoint-1; echo n > "
        "checkpoint-1/n')\n"
    "seen = os.listdir('checkpoint-1')",
    "mv": _RUN + "run('mv notes.txt moved.txt'); seen = (open('moved.txt').read(), "
        "os.path.exists('notes.txt'))",
    "mv over": _RUN + "run('mv log.csv notes.txt'); seen = open('notes.txt').read()",
    "mv of a folder": _RUN + "run('mv checkpoint-1 best'); seen = torch.load('best/model.pt')",
    "mv of a folder, then write in it": _RUN + "run('mv checkpoint-1 best; echo x >> "
        "best/state.json')\n"
    "seen = (open('best/state.json').read(), sorted(os.listdir('best')))",
    "chmod": _RUN + "run('chmod 600 notes.txt'); seen = oct(os.stat('notes.txt').st_mode)",
    "chmod of a folder": _RUN + "run('chmod 700 empty'); seen = oct(os.stat('empty').st_mode)",
    "chmod of a folder by Python": "os.chmod('empty', 0o711); seen = oct(os.stat('empty').st_mode)",
    "touch -d": _RUN + "run('touch -d 2001-01-01 notes.txt'); seen = os.stat('notes.txt').st_mtime",
    "touch of a folder": "os.utime('empty', (1, 1)); seen = os.stat('empty').st_mtime",
    "touch, new": _RUN + "run('touch new.txt'); seen = os.path.getsize('new.txt')",
    "append by a shell": _RUN + "run('echo more >> notes.txt'); seen = open('notes.txt').read()",
    "truncate": _RUN + "run('truncate -s 5 data.bin'); seen = os.path.getsize('data.bin')",
    "dd": _RUN + "run('dd if=/dev/zero of=data.bin bs=4 count=1 conv=notrunc')\n"
    "seen = open('data.bin', 'rb').read()",
    "sed -i": _RUN + "run('sed -i s/precious/common/ notes.txt'); seen = open('notes.txt').read()",
    "tee": _RUN + "run('echo x | tee -a notes.txt'); seen = open('notes.txt').read()",
    "ln": _RUN + "run('ln notes.txt second; echo x >> second'); seen = open('notes.txt').read()",
    "ln -s": _RUN + "run('ln -sf log.csv link.txt'); seen = os.readlink('link.txt')",
    "mkfifo": _RUN + "run('mkfifo pipe; echo x > pipe & cat pipe'); seen = os.path.exists('pipe')",
    "tar": _RUN + "run('tar cf all.tar checkpoint-1 && rm -r checkpoint-1 && tar xf all.tar')\n"
    "seen = torch.load('checkpoint-1/model.pt')",
    "git": _RUN + "run('git init -q . && git add notes.txt && git -c user.name=a -c user.email=a@b "
    "commit -qm one'); seen = run('git log --format=%s && git status --short notes.txt')",
    "another Python": "subprocess.run([sys.executable, '-S', '-c', \"open('notes.txt', "
        "'a').write('x')\"])\n"
    "seen = open('notes.txt').read()",
    "a program reads what was written": _RUN + "open('notes.txt', 'w').write('new')\n"
    "seen = run('cat notes.txt')",
    "a program reads what was removed": _RUN + "os.remove('notes.txt'); seen = run('ls')",
    "os.system": "os.system('echo x >> notes.txt'); seen = open('notes.txt').read()",
    "a descriptor that is inherited": "f = open('notes.txt', 'a')\n"
    "line = f'import os; os.write({f.fileno()}, b\"x\")'\n"
    "subprocess.run([sys.executable, '-S', '-c', line], pass_fds=[f.fileno()])\n"
    "f.close(); seen = open('notes.txt').read()",
    "open(2) by C": _LIBC + "d = libc.open(b'notes.txt', os.O_WRONLY | os.O_TRUNC)\n"
    "libc.write(d, b'new', 3); libc.close(d); seen = open('notes.txt').read()",
    "fopen by C": _LIBC + "libc.fopen.restype = ctypes.c_void_p\n"
    "f = libc.fopen(b'new.txt', b'w')\nif not f:\n    raise PermissionError\nlibc.fputs(b'abc', "
        "ctypes.c_void_p(f))\n"
    "libc.fclose(ctypes.c_void_p(f)); seen = open('new.txt').read()",
    "rename(2) by C": _LIBC + "libc.rename(b'log.csv', b'notes.txt'); seen = "
        "open('notes.txt').read()",
    "unlink(2) by C": _LIBC + "libc.unlink(b'notes.txt'); seen = os.path.exists('notes.txt')",
    "mkdir(2) by C": _LIBC + "libc.mkdir(b'made', 0o755); seen = os.listdir('made')",
    "chmod(2) by C": _LIBC + "libc.chmod(b'notes.txt', 0o600); seen = "
        "oct(os.stat('notes.txt').st_mode)",
    "os.mkfifo": "os.mkfifo('pipe'); seen = os.path.exists('pipe')",
    "os.mknod": "os.mknod('plain'); seen = os.path.getsize('plain')",
    "a socket": "import socket; s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen()\n"
    "c = socket.socket(socket.AF_UNIX); c.connect('s'); c.send(b'x'); seen = s.accept()[0].recv(1)",
    "setxattr": "os.setxattr('notes.txt', 'user.k', b'v'); seen = os.getxattr('notes.txt', "
        "'user.k')",
    "sqlite3, the program": _RUN + "run('sqlite3 runs.db \"insert into runs values (7)\"')\n"
    "c = sqlite3.connect('runs.db'); seen = c.execute('select * from runs').fetchall(); c.close()",
    "sqlite3, a kept connection": "import _sqlite3; c = _sqlite3.connect('runs.db')\n"
    "c.execute('insert into runs values (8)'); c.commit(); c.close()\n"
    "c = _sqlite3.connect('runs.db'); seen = c.execute('select * from runs').fetchall(); c.close()",
    "sqlite3 in WAL mode": "c = sqlite3.connect('runs.db'); c.execute('pragma journal_mode=wal')\n"
    "c.execute('insert into runs values (9)'); c.commit(); d = sqlite3.connect('runs.db')\n"
    "seen = d.execute('select * from runs').fetchall(); c.close(); d.close()",
    "dbm": "import dbm\nwith dbm.open('keys', 'c') as d:\n    d['a'] = 'b'\n"
    "with dbm.open('keys') as d:\n    seen = d['a']",
    "mmap of a new file": "f = open('new.bin', 'wb+'); f.truncate(64); m = mmap.mmap(f.fileno(), "
        "64)\n"
    "m[0:3] = b'abc'; m.flush(); m.close(); f.close(); seen = open('new.bin', 'rb').read(3)",
    "a lock": "import fcntl; f = open('notes.txt', 'a'); fcntl.flock(f, fcntl.LOCK_EX)\n"
    "f.write('x'); f.close(); seen = open('notes.txt').read()",
    "a rewritten module": "import importlib\nPath('own_module.py').write_text('x = 1'); "
        "sys.path.insert(0, '.')\n"
    "importlib.invalidate_caches()\n"  # Python keeps a finder of '.' where it was before
    "import own_module; one = own_module.x; os.utime('own_module.py', (1, 1))\n"
    "Path('own_module.py').write_text('x = 20'); importlib.invalidate_caches()\n"
    "importlib.reload(own_module); seen = (one, own_module.x); sys.path.pop(0)\n"
    "del sys.modules['own_module']",
    "a zip of modules": "with zipfile.ZipFile('modules.zip', 'w') as z:\n"
    "    z.writestr('in_zip.py', 'x = 5')\nsys.path.insert(0, os.path.abspath('modules.zip'))\n"
    "import in_zip; seen = in_zip.x; sys.path.pop(0)",
    "profiler": "with torch.profiler.profile() as p:\n    torch.ones(3) + 1\n"
    "p.export_chrome_trace('trace.json'); seen = 'traceEvents' in json.load(open('trace.json'))",
    "profiler over a file": "with torch.profiler.profile() as p:\n    torch.ones(3) + 1\n"
    "p.export_chrome_trace('notes.txt'); seen = 'traceEvents' in json.load(open('notes.txt'))",
    "safetensors": "from safetensors.torch import load_file, save_file\n"
    "save_file({'a': torch.ones(2)}, 'new.safetensors'); save_file({'a': torch.zeros(2)}, "
        "'new.safetensors')\n"
    "seen = load_file('new.safetensors')['a'].tolist()",
    "safetensors' safe_open": "from safetensors import safe_open\nfrom safetensors.torch import "
        "save_file\n"
    "save_file({'a': torch.ones(2)}, 'notes.txt')\nwith safe_open('notes.txt', 'pt') as f:\n"
    "    seen = f.get_tensor('a').tolist()",
    "tokenizers": "from tokenizers import Tokenizer, models\n"
    "Tokenizer(models.WordLevel({'a': 0, '?': 1}, unk_token='?')).save('tokenizer.json')\n"
    "seen = Tokenizer.from_file('tokenizer.json').encode('a').ids",
    "save_pretrained of a tokenizer": "from tokenizers import Tokenizer, models\n"
    "from transformers import PreTrainedTokenizerFast\n"
    "fast = Tokenizer(models.WordLevel({'a': 0, '?': 1}, unk_token='?'))\n"
    "PreTrainedTokenizerFast(tokenizer_object=fast).save_pretrained('checkpoint-1')\n"
    "PreTrainedTokenizerFast(tokenizer_object=fast).save_pretrained('checkpoint-1')\n"
    "seen = PreTrainedTokenizerFast.from_pretrained('checkpoint-1')('a')['input_ids']",
    "Arrow's own file systems": "from pyarrow import fs\nlocal = fs.LocalFileSystem()\n"
    "with local.open_output_stream('notes.txt') as f:\n    f.write(b'arrow')\n"
    "local.copy_file('notes.txt', 'again.txt'); local.delete_file('log.csv')\n"
    "seen = (open('again.txt').read(), os.path.exists('log.csv'))",
    "an Arrow file, as datasets write them": "import pyarrow as pa\n"
    "def write(values):\n    table = pa.table({'a': values})\n"
    "    with pa.OSFile('rows.arrow', 'wb') as s, pa.ipc.new_stream(s, table.schema) as w:\n"
    "        w.write_table(table)\n"
    "write([1]); write([2, 3])\n"
    "seen = pa.ipc.open_stream(pa.memory_map('rows.arrow')).read_all()['a'].to_pylist()",
    "a folder of Parquet": "import pyarrow as pa, pyarrow.dataset as ds\n"
    "ds.write_dataset(pa.table({'a': [1, 2]}), 'rows', format='parquet')\n"
    "seen = ds.dataset('rows').to_table()['a'].to_pylist()",
    "PIL": "from PIL import Image; Image.new('L', (2, 2), 7).save('dot.png')\n"
    "seen = Image.open('dot.png').getpixel((0, 0))",
    "a Cython writer with its own handle": "import pandas\n"
    "pandas.DataFrame({'a': [1]}).to_parquet('log.csv'); seen = "
        "pandas.read_parquet('log.csv')['a'].tolist()",
    "numpy by a descriptor": "d = os.open('array.npy', os.O_RDWR); np.full(4, "
        "9).tofile(os.fdopen(d, 'r+b'))\n"
    "seen = open('array.npy', 'rb').read()[:8]",
    "os.rename of a folder": "os.rename('checkpoint-1', 'best'); seen = sorted(os.listdir('best'))",
    "os.replace of a folder with one": "shutil.rmtree('checkpoint-2'); os.mkdir('checkpoint-2')\n"
    "os.replace('checkpoint-1', 'checkpoint-2'); seen = torch.load('checkpoint-2/model.pt')",
    "a second name that was there": "open('notes.txt', 'a').write('new'); seen = "
        "open('hard.txt').read()",
    "posix": "import posix; posix.rename('notes.txt', 'moved.txt'); seen = "
        "open('moved.txt').read()",
    "_io": "import _io; f = _io.FileIO('notes.txt', 'w'); f.write(b'x'); f.close()\n"
    "seen = open('notes.txt').read()",
    "multiprocessing, spawned": "seen = subprocess.run([sys.executable, '-c', "
    "\"import os; os.rename('notes.txt', 'moved.txt')\"]).returncode, os.path.exists('moved.txt')",
    "openat(2)": _LIBC + "f = os.open('checkpoint-1', os.O_RDONLY)\n"
    "d = libc.openat(f, b'new.txt', os.O_WRONLY | os.O_CREAT, 0o644); libc.write(d, b'new', 3)\n"
    "libc.close(d); os.close(f); seen = open('checkpoint-1/new.txt').read()",
    "sendfile": "a, b = os.open('log.csv', os.O_RDONLY), os.open('notes.txt', os.O_WRONLY)\n"
    "os.sendfile(b, a, 0, 4); os.close(a); os.close(b); seen = open('notes.txt').read()",
    "copy_file_range": "a, b = os.open('log.csv', os.O_RDONLY), os.open('notes.txt', os.O_WRONLY)\n"
    "os.copy_file_range(a, b, 4); os.close(a); os.close(b); seen = open('notes.txt').read()",
    "a file without a name, linked": "d = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(d, "
        "b'x')\n"
    "os.link(f'/proc/self/fd/{d}', 'named', follow_symlinks=True, src_dir_fd=0)\n"
    "os.close(d); seen = open('named').read()",
}  # fmt: skip
