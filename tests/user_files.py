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

__all__ = ["CHILDREN_AND_EXIT", "C_LIBRARIES", "MOVES_AND_REMOVALS", "PYTHON", "furnish"]


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
    "open r+": "f = open('notes.txt', 'r+'); f.write('NEW'); f.close(); seen = open('notes.txt').read()",
    "open w+": "f = open('notes.txt', 'w+'); f.write('x'); f.seek(0); seen = f.read(); f.close()",
    "open wb": "open('data.bin', 'wb').write(b'new'); seen = open('data.bin', 'rb').read()",
    "open ab": "open('data.bin', 'ab').write(b'new'); seen = open('data.bin', 'rb').read()",
    "open r+b": "f = open('data.bin', 'r+b'); f.seek(3); f.write(b'X'); f.close()\n"
    "seen = open('data.bin', 'rb').read()",
    "open x on what stands": "try:\n    open('notes.txt', 'x')\n"
    "except FileExistsError as error:\n    seen = (error.errno, error.filename)",
    "a new file": "open('new.txt', 'w').write('new'); seen = (open('new.txt').read(), sorted(os.listdir()))",
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
    "os.open": "d = os.open('notes.txt', os.O_WRONLY | os.O_TRUNC); os.write(d, b'new'); os.close(d)\n"
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
    "pickle": "pickle.dump([1], open('data.bin', 'wb')); seen = pickle.load(open('data.bin', 'rb'))",
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
    "configparser": "c = configparser.ConfigParser(); c['a'] = {'b': '1'}; c.write(open('notes.txt', 'w'))\n"
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
    "torch.save to a path of bytes above ASCII": "torch.save({'a': torch.ones(2)}, 'mod\\xe8le.pt')\n"
    "seen = torch.load('mod\\xe8le.pt')['a'].tolist()",
    "PyTorchFileWriter": "w = torch._C.PyTorchFileWriter('model.pt'); w.write_record('r', b'abc', 3)\n"
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
    "a mapped storage": "s = torch.UntypedStorage.from_file('data.bin', True, 64); s[0] = 99; del s\n"
    "seen = open('data.bin', 'rb').read()",
    "torch.from_file": "t = torch.from_file('data.bin', True, 64, dtype=torch.uint8); t[0] = 99; del t\n"
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
    "parquet": "import pyarrow, pyarrow.parquet as pq\n"
    "pq.write_table(pyarrow.table({'a': [1, 2]}), 'log.csv'); seen = pq.read_table('log.csv').to_pydict()",
    "ParquetWriter": "import pyarrow, pyarrow.parquet as pq; t = pyarrow.table({'a': [1, 2]})\n"
    "with pq.ParquetWriter('log.csv', t.schema) as w:\n    w.write_table(t); w.write_table(t)\n"
    "seen = pq.ParquetFile('log.csv').metadata.num_rows",
    "pandas to_parquet": "import pandas; pandas.DataFrame({'a': [1]}).to_parquet('log.csv')\n"
    "seen = pandas.read_parquet('log.csv')['a'].tolist()",
    "feather": "import pyarrow; from pyarrow import feather\n"
    "feather.write_feather(pyarrow.table({'a': [1]}), 'log.csv'); seen = os.path.getsize('log.csv')",
    "Arrow's csv": "import pyarrow; from pyarrow import csv as c\n"
    "c.write_csv(pyarrow.table({'a': [1]}), 'log.csv'); seen = open('log.csv').read()",
    "sqlite3": "with contextlib.closing(sqlite3.connect('runs.db')) as c:\n"
    "    c.execute('insert into runs values (7)'); c.commit()\n"
    "with contextlib.closing(sqlite3.connect('runs.db')) as c:\n"
    "    seen = c.execute('select * from runs').fetchall()",
    "sqlite3, new": "with contextlib.closing(sqlite3.connect('new.db')) as c:\n"
    "    c.execute('create table t (x)'); c.commit()\nseen = os.path.exists('new.db')",
    "sqlite3 by URI": "with contextlib.closing(sqlite3.connect('file:runs.db?mode=rw', uri=True)) as c:\n"
    "    c.execute('drop table runs'); c.commit()\n"
    "    seen = c.execute('select name from sqlite_master').fetchall()",
    "memory mapped loading": "torch.save({'a': torch.ones(2)}, 'model.pt')\n"
    "seen = torch.load('model.pt', mmap=True)['a'].tolist()",
}

MOVES_AND_REMOVALS = {
    "os.remove": "os.remove('notes.txt'); seen = (os.path.exists('notes.txt'), sorted(os.listdir()))",
    "os.unlink": "os.unlink('notes.txt'); seen = sorted(e.name for e in os.scandir())",
    "Path.unlink": "Path('notes.txt').unlink(); seen = sorted(p.name for p in Path().iterdir())",
    "remove with a descriptor": "d = os.open('checkpoint-1', os.O_RDONLY)\n"
    "os.unlink('model.pt', dir_fd=d); seen = os.listdir(d); os.close(d)",
    "remove twice": "os.remove('notes.txt')\ntry:\n    os.remove('notes.txt')\n"
    "except FileNotFoundError as error:\n    seen = (error.errno, error.filename)",
    "remove, then write anew": "os.remove('notes.txt'); open('notes.txt', 'x').write('again')\n"
    "seen = (open('notes.txt').read(), open('hard.txt').read())",
    "os.rmdir": "os.rmdir('empty'); seen = os.path.isdir('empty')",
    "rmdir of what is not empty": "try:\n    os.rmdir('checkpoint-1')\n"
    "except OSError as error:\n    seen = error.errno",
    "removedirs": "os.makedirs('a/b/c'); os.removedirs('a/b/c'); seen = os.path.exists('a')",
    "shutil.rmtree": "shutil.rmtree('checkpoint-1')\n"
    "seen = (glob.glob('checkpoint-*'), os.path.exists('checkpoint-1/model.pt'))",
    "rmtree of a Path": "shutil.rmtree(Path('checkpoint-1').absolute()); seen = sorted(glob.glob('c*'))",
    "rmtree, errors ignored": "shutil.rmtree('checkpoint-1', ignore_errors=True)\n"
    "seen = os.path.lexists('checkpoint-1')",
    "rmtree, then the folder anew": "shutil.rmtree('checkpoint-1'); os.makedirs('checkpoint-1')\n"
    "open('checkpoint-1/x', 'w').write('x'); seen = os.listdir('checkpoint-1')",
    "keep the last two": "for n in range(4, 7):\n    os.makedirs(f'checkpoint-{n}')\n"
    "    torch.save({'step': n}, f'checkpoint-{n}/model.pt')\n"
    "    for old in sorted(glob.glob('checkpoint-*'))[:-2]:\n        shutil.rmtree(old)\n"
    "seen = {p: torch.load(p + '/model.pt') for p in sorted(glob.glob('checkpoint-*'))}",
    "os.rename": "os.rename('notes.txt', 'moved.txt')\n"
    "seen = (os.path.exists('notes.txt'), open('moved.txt').read())",
    "os.replace": "os.replace('log.csv', 'notes.txt'); seen = (open('notes.txt').read(), os.listdir())",
    "Path.rename": "Path('notes.txt').rename('moved.txt'); seen = Path('moved.txt').read_text()",
    "Path.replace": "Path('log.csv').replace('notes.txt'); seen = Path('notes.txt').read_text()",
    "rename of a folder": "os.rename('checkpoint-1', 'best')\n"
    "seen = (torch.load('best/model.pt'), sorted(os.listdir('best')), os.path.exists('checkpoint-1'))",
    "rename of a folder, then write in it": "os.rename('checkpoint-1', 'best')\n"
    "open('best/state.json', 'w').write('new'); open('best/more', 'w').write('m')\n"
    "seen = sorted((str(p), p.read_bytes()) for p in Path('best').iterdir())",
    "save beside, then replace": "torch.save({'a': 5}, 'model.pt.tmp')\n"
    "os.replace('model.pt.tmp', 'model.pt'); seen = (torch.load('model.pt'), os.path.exists('model.pt.tmp'))",
    "text beside, then replace": "open('notes.tmp', 'w').write('new'); os.replace('notes.tmp', 'notes.txt')\n"
    "seen = open('notes.txt').read()",
    "a named temporary file, then replace": "with tempfile.NamedTemporaryFile(dir='.', delete=False) as f:\n"
    "    torch.save({'a': 5}, f)\nos.replace(f.name, 'model.pt')\n"
    "seen = (torch.load('model.pt'), os.path.exists(f.name))",
    "backup by rename": "os.rename('notes.txt', 'notes.bak'); open('notes.txt', 'w').write('new')\n"
    "seen = (open('notes.txt').read(), open('notes.bak').read())",
    "rotation of a log": "os.replace('log.csv', 'log.1.csv'); open('log.csv', 'w').write('fresh')\n"
    "seen = sorted((p.name, p.read_text()) for p in Path().glob('log*'))",
    "logging.handlers": "h = logging.handlers.RotatingFileHandler('notes.txt', maxBytes=10, backupCount=1)\n"
    "log = logging.getLogger('rotating'); log.addHandler(h); log.warning('x' * 20); log.removeHandler(h)\n"
    "h.close(); seen = sorted((p.name, p.read_text()) for p in Path().glob('notes*'))",
    "shutil.move": "shutil.move('notes.txt', 'empty'); seen = (os.listdir('empty'), os.path.exists('notes.txt'))",
    "shutil.move of a folder": "shutil.move('checkpoint-1', 'empty')\n"
    "seen = sorted(os.listdir('empty/checkpoint-1'))",
    "shutil.copyfile over": "shutil.copyfile('log.csv', 'notes.txt'); seen = open('notes.txt').read()",
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
    "rename over a folder": "os.rename('checkpoint-1', 'empty'); seen = sorted(os.listdir('empty'))",
    "walk after removals": "shutil.rmtree('checkpoint-2'); os.remove('checkpoint-1/model.pt')\n"
    "seen = sorted((a, sorted(b), sorted(c)) for a, b, c in os.walk('.'))",
    "os.renames": "os.renames('notes.txt', 'a/b/notes.txt'); seen = open('a/b/notes.txt').read()",
}

# What these print is what they read back; `rc` is what the script ends with.
CHILDREN_AND_EXIT = {
    "a forked child writes": (
        "def work():\n    open('notes.txt', 'a').write('child')\n    open('new.txt', 'w').write('n')\n"
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
        "    p.start(); p.join()\n    print(p.exitcode, open('notes.txt').read(), sorted(os.listdir()))",
        0,
    ),
    "a child of a fork server writes": (
        "import worker\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('forkserver').Process(target=worker.work)\n"
        "    p.start(); p.join()\n    print(p.exitcode, open('notes.txt').read(), sorted(os.listdir()))",
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
        "import worker\nworker.log.write('line'); worker.log.flush()\nprint(open('log.csv').read())",
        0,
    ),
}
