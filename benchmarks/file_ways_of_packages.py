"""Ways in which programs and packages write files, beside those in tests/user_files.py.

Each is a script's own lines, run in a folder that `furnish` of tests/user_files.py made. What it
leaves in `seen` is what it reads back. One that needs a package names it in an import.
"""

from __future__ import annotations

_RUN = (
    "run = lambda line: subprocess.run(line, shell=True, check=True, capture_output=True, "
    "text=True).stdout\n"
)
_GIT = _RUN + "git = 'git -c user.name=a -c user.email=a@b '\nrun('git init -q .; git add -A')\n"
_DVC = (
    _RUN + "import importlib.util; assert importlib.util.find_spec('dvc')\n"
    "dvc = sys.executable + ' -m dvc '\nos.environ['DVC_NO_ANALYTICS'] = '1'; run('git init -q .')\n"
)
_TOKENIZER = (
    "from tokenizers import Tokenizer, models, pre_tokenizers, trainers\n"
    "fast = Tokenizer(models.WordLevel({'a': 0, '?': 1}, unk_token='?'))\n"
)
_NET = "net = torch.nn.Linear(2, 2)\nfor p in net.parameters():\n    p.data.fill_(0.5)\n"
_HF = (
    "from transformers import BertConfig, BertForSequenceClassification as Bert\n"
    "config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,\n"
    "    intermediate_size=8, max_position_embeddings=8)\nmodel = Bert(config)\n"
)
_ARROW = "import pyarrow as pa\ntable = pa.table({'a': [1, 2]})\n"

_SHELLS = {
    "sh: a redirection over a file": _RUN + "run('echo new > notes.txt'); seen = open('notes.txt').read()",
    "sh: a new file": _RUN + "run('echo new > new.txt'); seen = open('new.txt').read()",
    "sh: a here document": _RUN + "run('cat > new.txt <<END\\nnew\\nEND'); seen = open('new.txt').read()",
    "bash: noclobber": _RUN + "seen = subprocess.run(['bash', '-c', 'set -C; echo x > notes.txt']).returncode",
    "mkdir -p": _RUN + "run('mkdir -p a/b/c; echo x > a/b/c/d'); seen = open('a/b/c/d').read()",
    "mktemp here": _RUN + "name = run('mktemp -p .').strip(); open(name, 'w').write('x')\n"
    "seen = run(f'cat {name}')",
    "install": _RUN + "run('install -m 600 log.csv new.csv'); seen = oct(os.stat('new.csv').st_mode)",
    "rmdir": _RUN + "run('rmdir empty'); seen = os.path.isdir('empty')",
    "mv of a new file": _RUN + "run('echo x > a; mv a b'); seen = (os.path.exists('a'), open('b').read())",
    "mv of a new folder": _RUN + "run('mkdir a; echo x > a/x; mv a b'); seen = os.listdir('b')",
    "mv of a new file over one": _RUN + "run('echo x > a; mv a notes.txt'); seen = open('notes.txt').read()",
    "rm of a new file": _RUN + "run('echo x > a; rm a'); seen = os.path.exists('a')",
    "append twice to a new file": _RUN + "run('echo x >> a; echo y >> a'); seen = open('a').read()",
    "sort -o itself": _RUN + "run('sort -o log.csv log.csv'); seen = open('log.csv').read()",
    "split": _RUN + "run('split -b 16 data.bin part-'); seen = sorted(glob.glob('part-*'))",
    "gzip": _RUN + "run('gzip -k log.csv'); seen = gzip.open('log.csv.gz').read()",
    "gzip in place": _RUN + "run('gzip log.csv'); seen = (os.path.exists('log.csv'), gzip.open('log.csv.gz').read())",
    "zip": _RUN + "run('zip -q all.zip log.csv notes.txt'); seen = zipfile.ZipFile('all.zip').namelist()",
    "unzip over": _RUN + "run('zip -q all.zip notes.txt; echo x > notes.txt; unzip -qo all.zip')\n"
    "seen = open('notes.txt').read()",
    "tar of a new folder": _RUN + "run('tar czf all.tgz checkpoint-1; mkdir out; tar xzf all.tgz -C out')\n"
    "seen = sorted(os.listdir('out/checkpoint-1'))",
    "patch": _RUN + "open('d', 'w').write('--- notes.txt\\n+++ notes.txt\\n@@ -1 +1 @@\\n-precious notes\\n+new\\n')\n"
    "run('patch -s -p0 < d'); seen = open('notes.txt').read()",
    "ed": _RUN + "run('printf \"1d\\nw\\nq\\n\" | ed -s log.csv'); seen = open('log.csv').read()",
    "perl -pi": _RUN + "run('perl -pi -e s/precious/common/ notes.txt'); seen = open('notes.txt').read()",
    "awk to a file": _RUN + "run('awk -F, \\'{print $1 > \"first.txt\"}\\' log.csv'); seen = open('first.txt').read()",
    "find -delete": _RUN + "run('find checkpoint-1 -name \"*.json\" -delete'); seen = os.listdir('checkpoint-1')",
    "cp -r of a folder into a new one": _RUN + "run('cp -r checkpoint-1 copied')\n"
    "seen = sorted(os.listdir('copied'))",
    "cp --link": _RUN + "run('cp --link log.csv second.csv'); seen = os.stat('log.csv').st_nlink",
    "ln -s, new": _RUN + "run('ln -s log.csv latest'); seen = os.readlink('latest')",
    "make": _RUN + "open('Makefile', 'w').write('out.txt: log.csv\\n\\tcp log.csv out.txt\\n')\n"
    "run('make -s'); seen = open('out.txt').read()",
    "gcc": _RUN + "open('m.c', 'w').write('int main(){return 7;}')\nrun('gcc m.c -o m')\n"
    "seen = subprocess.run(['./m']).returncode",
    "a C extension": _RUN + "open('e.c', 'w').write('int f(void){return 7;}')\n"
    "run('gcc -shared -fPIC e.c -o e.so'); import ctypes\nseen = ctypes.CDLL('./e.so').f()",
    "a script that is made and run": _RUN + "open('s.sh', 'w').write('#!/bin/sh\\necho 7\\n')\n"
    "os.chmod('s.sh', 0o755); seen = run('./s.sh')",
    "chmod of a new file": _RUN + "run('echo x > a; chmod 600 a'); seen = oct(os.stat('a').st_mode)",
    "touch -d of a new file": _RUN + "run('touch -d 2001-01-01 a'); seen = os.stat('a').st_mtime",
    "tee to two files": _RUN + "run('echo x | tee a b'); seen = (open('a').read(), open('b').read())",
    "a background writer": "p = subprocess.Popen('sleep 0.1; echo x > late.txt', shell=True); p.wait()\n"
    "seen = open('late.txt').read()",
    "stdout to a new file": "with open('out.txt', 'w') as f:\n    subprocess.run(['echo', 'x'], stdout=f)\n"
    "seen = open('out.txt').read()",
    "stdout to a file that stood": "with open('notes.txt', 'a') as f:\n    subprocess.run(['echo', 'x'], stdout=f)\n"
    "seen = open('notes.txt').read()",
    "a program in another folder": "subprocess.run('echo x > y', shell=True, cwd='empty'); seen = os.listdir('empty')",
    "python -c writes": "subprocess.run([sys.executable, '-c', \"open('n', 'w').write('x')\"]); seen = open('n').read()",
    "python -m compileall": _RUN + "os.mkdir('p'); open('p/m.py', 'w').write('x = 1')\n"
    "run(f'{sys.executable} -m compileall -q p'); seen = len(os.listdir('p/__pycache__'))",
    "python -m zipapp": _RUN + "os.mkdir('p'); open('p/__main__.py', 'w').write('print(7)')\n"
    "run(f'{sys.executable} -m zipapp p'); seen = run(f'{sys.executable} p.pyz')",
    "python -m venv": _RUN + "run(f'{sys.executable} -m venv --without-pip env'); seen = os.path.exists('env/bin/python')",
}  # fmt: skip

_GITS = {
    "git init": _RUN + "run('git init -q .'); seen = run('git rev-parse --is-inside-work-tree')",
    "git commit": _GIT + "run(git + 'commit -qm one'); seen = run('git log --format=%s')",
    "git stash": _GIT + "run(git + 'commit -qm one'); open('notes.txt', 'w').write('x')\n"
    "run(git + 'stash -q'); seen = open('notes.txt').read()",
    "git checkout of a file": _GIT + "run(git + 'commit -qm one'); open('notes.txt', 'w').write('x')\n"
    "run('git checkout -q notes.txt'); seen = open('notes.txt').read()",
    "git branch and switch": _GIT + "run(git + 'commit -qm one; git switch -qc b'); seen = run('git branch --show-current')",
    "git mv": _GIT + "run(git + 'commit -qm one; git mv notes.txt n'); seen = os.path.exists('n')",
    "git rm": _GIT + "run(git + 'commit -qm one; git rm -q notes.txt'); seen = os.path.exists('notes.txt')",
    "git clone": _GIT + "run(git + 'commit -qm one; git clone -q . cloned'); seen = open('cloned/notes.txt').read()",
    "git config": _RUN + "run('git init -q .; git config a.b c'); seen = run('git config a.b')",
    "git tag and gc": _GIT + "run(git + 'commit -qm one; git tag t; git gc -q'); seen = run('git tag')",
    "GitPython": "import git; repo = git.Repo.init('.'); repo.index.add(['notes.txt'])\n"
    "actor = git.Actor('a', 'a@b'); repo.index.commit('one', author=actor, committer=actor)\n"
    "seen = repo.head.commit.message",
}  # fmt: skip

_HUGGING_FACE = {
    "Tokenizer.save over a file": _TOKENIZER + "fast.save('notes.txt'); seen = Tokenizer.from_file('notes.txt').encode('a').ids",
    "Tokenizer.train from files": _TOKENIZER + "open('text.txt', 'w').write('a b a')\n"
    "fast.pre_tokenizer = pre_tokenizers.Whitespace()\n"
    "fast.train(['text.txt'], trainers.WordLevelTrainer(special_tokens=['?']))\nseen = fast.get_vocab_size()",
    "Tokenizer.model.save": _TOKENIZER + "fast.model.save('empty'); seen = json.load(open('empty/vocab.json'))",
    "BPE from saved files": "from tokenizers import ByteLevelBPETokenizer\nopen('t.txt', 'w').write('ab ab ab')\n"
    "t = ByteLevelBPETokenizer(); t.train(['t.txt'], vocab_size=260); t.save_model('.')\n"
    "seen = ByteLevelBPETokenizer('vocab.json', 'merges.txt').encode('ab').ids",
    "save_pretrained of a model": _HF + "model.save_pretrained('saved')\n"
    "seen = sorted(os.listdir('saved')), type(Bert.from_pretrained('saved')).__name__",
    "save_pretrained twice": _HF + "model.save_pretrained('saved'); model.classifier.bias.data.fill_(3.0)\n"
    "model.save_pretrained('saved'); seen = Bert.from_pretrained('saved').classifier.bias.tolist()",
    "save_pretrained over a checkpoint": _HF + "model.save_pretrained('checkpoint-1')\n"
    "seen = sorted(os.listdir('checkpoint-1'))",
    "save_pretrained in shards": _HF + "model.save_pretrained('saved', max_shard_size='1KB')\n"
    "seen = type(Bert.from_pretrained('saved')).__name__",
    "a config": _HF + "config.save_pretrained('c'); seen = BertConfig.from_pretrained('c').hidden_size",
    "Dataset.save_to_disk": "from datasets import Dataset, load_from_disk\n"
    "Dataset.from_dict({'a': [1, 2]}).save_to_disk('d'); seen = load_from_disk('d')['a'][:]",
    "Dataset.save_to_disk twice": "from datasets import Dataset, load_from_disk\n"
    "Dataset.from_dict({'a': [1]}).save_to_disk('d'); Dataset.from_dict({'a': [2, 3]}).save_to_disk('d')\n"
    "seen = load_from_disk('d')['a'][:]",
    "Dataset.to_json": "from datasets import Dataset\nDataset.from_dict({'a': [1]}).to_json('notes.txt'); seen = open('notes.txt').read()",
    "Dataset.to_parquet": "from datasets import Dataset\nDataset.from_dict({'a': [1]}).to_parquet('r.parquet')\n"
    "import pyarrow.parquet as pq; seen = pq.read_table('r.parquet').to_pydict()",
    "Dataset.map with a cache here": "from datasets import Dataset\nd = Dataset.from_dict({'a': [1, 2]})\n"
    "seen = d.map(lambda r: {'b': r['a'] * 2}, cache_file_name='cache.arrow')['b'][:], os.path.exists('cache.arrow')",
    "load_dataset of JSON": "from datasets import load_dataset\nopen('r.json', 'w').write('{\"a\": 1}\\n')\n"
    "seen = load_dataset('json', data_files='r.json', cache_dir='cache')['train']['a'][:]",
    "accelerate save_state": "import accelerate\n" + _NET + "a = accelerate.Accelerator(cpu=True); net = a.prepare(net)\n"
    "a.save_state('state'); net.weight.data.fill_(9.0); a.load_state('state'); seen = net.weight[0, 0].item()",
    "peft adapters": _HF + "import peft\np = peft.get_peft_model(model, peft.LoraConfig(target_modules=['query']))\n"
    "p.save_pretrained('adapter'); seen = sorted(os.listdir('adapter'))",
    "safetensors over a model": "from safetensors.torch import load_file, save_file\n"
    "save_file({'a': torch.ones(2)}, 'model.pt'); seen = load_file('model.pt')['a'].tolist()",
}  # fmt: skip

_FORMATS = {
    "h5py, new": "import h5py\nwith h5py.File('n.h5', 'w') as f:\n    f['a'] = np.arange(3)\n"
    "with h5py.File('n.h5') as f:\n    seen = f['a'][:].tolist()",
    "h5py, append": "import h5py\nfor n in '12':\n    with h5py.File('n.h5', 'a') as f:\n        f[n] = 1\n"
    "with h5py.File('n.h5') as f:\n    seen = sorted(f)",
    "h5py over a file": "import h5py\nwith h5py.File('notes.txt', 'w') as f:\n    f['a'] = 1\n"
    "with h5py.File('notes.txt') as f:\n    seen = list(f)",
    "PyTables": "import tables\nwith tables.open_file('n.h5', 'w') as f:\n    f.create_array('/', 'a', [1, 2])\n"
    "with tables.open_file('n.h5') as f:\n    seen = f.root.a.read()",
    "lmdb": "import lmdb\ne = lmdb.open('db', map_size=2**20)\nwith e.begin(write=True) as t:\n    t.put(b'a', b'b')\n"
    "with e.begin() as t:\n    seen = t.get(b'a')\ne.close()",
    "lmdb, opened again": "import lmdb\nfor n in b'12':\n    e = lmdb.open('db', map_size=2**20)\n"
    "    with e.begin(write=True) as t:\n        t.put(bytes([n]), b'b')\n    seen = e.stat()['entries']; e.close()",
    "zarr": "import zarr\nz = zarr.open('z.zarr', mode='w', shape=(4,), chunks=(2,), dtype='i4'); z[:] = 7\n"
    "seen = zarr.open('z.zarr', mode='r')[:].tolist()",
    "zarr, changed": "import zarr\nz = zarr.open('z.zarr', mode='w', shape=(4,), chunks=(2,), dtype='i4'); z[:] = 7\n"
    "zarr.open('z.zarr', mode='r+')[0] = 1; seen = zarr.open('z.zarr', mode='r')[:].tolist()",
    "joblib.dump": "import joblib; joblib.dump({'a': np.ones(2)}, 'j.pkl'); seen = joblib.load('j.pkl')['a'].tolist()",
    "joblib.dump over a file": "import joblib; joblib.dump([1], 'data.bin'); seen = joblib.load('data.bin')",
    "joblib.load, mapped": "import joblib; joblib.dump(np.ones(2), 'j.pkl'); seen = joblib.load('j.pkl', mmap_mode='r').tolist()",
    "joblib.Memory": "import joblib; m = joblib.Memory('cache', verbose=0)\nimport own_function\n"
    "seen = m.cache(own_function.f)(2), os.path.isdir('cache')",
    "joblib.Parallel": "import joblib\nimport own_function\n"
    "seen = joblib.Parallel(2)(joblib.delayed(own_function.f)(n) for n in range(3))",
    "scikit-learn and pickle": "from sklearn.linear_model import LinearRegression\n"
    "m = LinearRegression().fit([[0], [1]], [0, 1]); pickle.dump(m, open('data.bin', 'wb'))\n"
    "seen = round(float(pickle.load(open('data.bin', 'rb')).predict([[2]])[0]), 6)",
    "orjson": "import orjson; Path('n.json').write_bytes(orjson.dumps({'a': 1})); seen = orjson.loads(Path('n.json').read_bytes())",
    "msgpack": "import msgpack; Path('n.mp').write_bytes(msgpack.packb([1])); seen = msgpack.unpackb(Path('n.mp').read_bytes())",
    "zstandard": "import zstandard as z\nwith z.open('n.zst', 'wb') as f:\n    f.write(b'abc')\n"
    "with z.open('n.zst') as f:\n    seen = f.read()",
    "dill": "import dill; dill.dump(lambda x: x + 1, open('n.dill', 'wb')); seen = dill.load(open('n.dill', 'rb'))(1)",
    "cloudpickle": "import cloudpickle; cloudpickle.dump(lambda x: x + 1, open('n', 'wb')); seen = pickle.load(open('n', 'rb'))(1)",
    "diskcache": "import diskcache\nwith diskcache.Cache('cache') as c:\n    c['a'] = 1; seen = c['a']",
    "tinydb": "import tinydb; d = tinydb.TinyDB('t.json'); d.insert({'a': 1}); seen = [dict(r) for r in d.all()]",
    "duckdb": "import duckdb; c = duckdb.connect('n.duckdb'); c.execute('create table t as select 7 as a'); c.close()\n"
    "c = duckdb.connect('n.duckdb'); seen = c.execute('select a from t').fetchall(); c.close()",
    "duckdb, COPY": "import duckdb; duckdb.execute(\"copy (select 7 as a) to 'n.csv'\"); seen = open('n.csv').read()",
    "polars, csv": "import polars; polars.DataFrame({'a': [1]}).write_csv('log.csv'); seen = polars.read_csv('log.csv')['a'].to_list()",
    "polars, parquet": "import polars; polars.DataFrame({'a': [1]}).write_parquet('n.parquet'); seen = polars.read_parquet('n.parquet')['a'].to_list()",
    "polars, sink": "import polars; polars.LazyFrame({'a': [1]}).sink_parquet('n.parquet'); seen = polars.scan_parquet('n.parquet').collect()['a'].to_list()",
    "fastparquet": "import fastparquet, pandas; fastparquet.write('n.parquet', pandas.DataFrame({'a': [1]}))\n"
    "seen = fastparquet.ParquetFile('n.parquet').to_pandas()['a'].tolist()",
    "pandas, HDF": "import pandas, tables; pandas.DataFrame({'a': [1]}).to_hdf('n.h5', key='k'); seen = pandas.read_hdf('n.h5')['a'].tolist()",
    "pandas, pickle": "import pandas; pandas.DataFrame({'a': [1]}).to_pickle('data.bin'); seen = pandas.read_pickle('data.bin')['a'].tolist()",
    "pandas, sql": "import pandas\nwith contextlib.closing(sqlite3.connect('runs.db')) as c:\n"
    "    pandas.DataFrame({'a': [1]}).to_sql('t', c, index=False); seen = pandas.read_sql('select * from t', c)['a'].tolist()",
    "pandas, parquet, new": "import pandas; pandas.DataFrame({'a': [1]}).to_parquet('n.parquet'); seen = pandas.read_parquet('n.parquet')['a'].tolist()",
    "Arrow IPC": _ARROW + "with pa.ipc.new_file('n.arrow', table.schema) as w:\n    w.write(table)\n"
    "seen = pa.ipc.open_file('n.arrow').read_all().to_pydict()",
    "Arrow's csv, new": _ARROW + "from pyarrow import csv as c\nc.write_csv(table, 'n.csv'); seen = c.read_csv('n.csv').to_pydict()",
    "Arrow's ORC": _ARROW + "from pyarrow import orc\norc.write_table(table, 'n.orc'); seen = orc.read_table('n.orc').to_pydict()",
    "Arrow, a mapped file": _ARROW + "m = pa.create_memory_map('n.bin', 4); m.write(b'abcd'); m.close(); seen = open('n.bin', 'rb').read()",
    "matplotlib": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt\n"
    "plt.plot([1, 2]); plt.savefig('p.png'); plt.close(); from PIL import Image; seen = Image.open('p.png').size",
    "matplotlib, pdf": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt\n"
    "plt.plot([1, 2]); plt.savefig('p.pdf'); plt.close(); seen = open('p.pdf', 'rb').read(4)",
    "imageio": "import imageio.v3 as i; i.imwrite('n.png', np.zeros((2, 2), np.uint8)); seen = i.imread('n.png').tolist()",
    "tifffile": "import tifffile; tifffile.imwrite('n.tif', np.zeros((2, 2))); seen = tifffile.imread('n.tif').tolist()",
    "OpenCV": "import cv2; cv2.imwrite('n.png', np.zeros((2, 2), np.uint8)); seen = cv2.imread('n.png', 0).tolist()",
    "OpenCV over a file": "import cv2; cv2.imwrite('n.png', np.zeros((2, 2), np.uint8)); os.replace('n.png', 'data.bin')\n"
    "cv2.imwrite('n.png', np.ones((2, 2), np.uint8)); seen = cv2.imread('n.png', 0).tolist()",
    "soundfile": "import soundfile; soundfile.write('n.wav', np.zeros(8), 8000); seen = soundfile.read('n.wav')[1]",
    "wave": "import wave\nwith wave.open('n.wav', 'wb') as w:\n    w.setnchannels(1); w.setsampwidth(2); w.setframerate(8000); w.writeframes(b'ab')\n"
    "seen = wave.open('n.wav').getnframes()",
    "rocksdict": "import rocksdict; d = rocksdict.Rdict('db'); d['a'] = 1; d.close(); d = rocksdict.Rdict('db'); seen = d['a']; d.close()",
    "sentencepiece": "import sentencepiece as s\nopen('t.txt', 'w').write('ab cd ef gh\\n' * 50)\n"
    "s.SentencePieceTrainer.train(input='t.txt', model_prefix='sp', vocab_size=16, minloglevel=2)\n"
    "seen = s.SentencePieceProcessor(model_file='sp.model').vocab_size()",
    "onnx": "import onnx; from onnx import helper as h; onnx.save(h.make_model(h.make_graph([], 'g', [], [])), 'n.onnx'); seen = onnx.load('n.onnx').graph.name",
    "webdataset": "import webdataset as w\nwith w.TarWriter('n.tar') as t:\n    t.write({'__key__': 'k', 'txt': 'hello'})\n"
    "seen = tarfile.open('n.tar').getnames()",
    "xgboost": "import xgboost as x; b = x.train({}, x.DMatrix(np.eye(4), label=[0, 1, 0, 1]), 1); b.save_model('n.json')\n"
    "c = x.Booster(); c.load_model('n.json'); seen = c.num_boosted_rounds()",
    "sqlite3, a backup": "with contextlib.closing(sqlite3.connect('runs.db')) as a, contextlib.closing(sqlite3.connect('b.db')) as b:\n"
    "    a.backup(b); seen = b.execute('select name from sqlite_master').fetchall()",
    "sqlite3, ATTACH": "with contextlib.closing(sqlite3.connect('a.db')) as a:\n    a.execute(\"attach 'b.db' as b\")\n"
    "    a.execute('create table b.t (x)'); a.commit()\nseen = os.path.getsize('b.db') > 0",
    "numpy.lib.format memmap, new": "m = np.lib.format.open_memmap('n.npy', 'w+', 'i4', (2,)); m[:] = 7; m.flush(); del m\nseen = np.load('n.npy').tolist()",
    "numpy.load, mapped": "np.save('array.npy', np.ones(2)); seen = np.load('array.npy', mmap_mode='r').tolist()",
}  # fmt: skip

_TRACKERS = {
    "Hydra": "import hydra\nfrom omegaconf import OmegaConf\nopen('c.yaml', 'w').write('a: 1\\nhydra:\\n  run:\\n    dir: out\\n')\n"
    "sys.argv = ['own.py']\n@hydra.main(config_path=os.getcwd(), config_name='c', version_base=None)\n"
    "def own(cfg):\n    open('r', 'w').write(str(cfg.a))\nown(); seen = (os.path.exists('out/.hydra/config.yaml'), open('r').read())",
    "OmegaConf.save": "from omegaconf import OmegaConf; OmegaConf.save({'a': 1}, 'notes.txt'); seen = OmegaConf.load('notes.txt').a",
    "MLflow": "import mlflow\nmlflow.set_tracking_uri('sqlite:///' + os.path.abspath('m.db'))\n"
    "with mlflow.start_run() as r:\n    mlflow.log_metric('a', 1.0)\nseen = mlflow.get_run(r.info.run_id).data.metrics",
    "MLflow, an artifact": "import mlflow\nmlflow.set_tracking_uri('sqlite:///' + os.path.abspath('m.db'))\n"
    "with mlflow.start_run() as r:\n    mlflow.log_text('hello', 't.txt')\n    seen = mlflow.artifacts.load_text(r.info.artifact_uri + '/t.txt')",
    "wandb, offline": "import wandb; os.environ['WANDB_SILENT'] = 'true'\n"
    "r = wandb.init(mode='offline', dir='.', project='p'); r.log({'a': 1}); r.finish()\n"
    "seen = any(n.endswith('.wandb') for _, _, names in os.walk('wandb') for n in names)",
    "DVC": _DVC + "run(dvc + 'init -q; ' + dvc + 'add -q data.bin'); seen = sorted(glob.glob('*.dvc'))",
    "DVC, changed and checked out": _DVC + "run(dvc + 'init -q; ' + dvc + 'add -q data.bin')\n"
    "os.remove('data.bin'); run(dvc + 'checkout -q data.bin.dvc'); seen = open('data.bin', 'rb').read()",
    "DVC, a pipeline": _DVC + "run(dvc + 'init -q; ' + dvc + 'stage add -q -n copy -d log.csv -o out.csv cp log.csv out.csv; '\n"
    "    + dvc + 'repro -q'); seen = (open('out.csv').read(), os.path.exists('dvc.lock'))",
    "optuna with sqlite": "import optuna; optuna.logging.disable_default_handler()\n"
    "s = optuna.create_study(storage='sqlite:///o.db'); s.optimize(lambda t: 1.0, n_trials=1); seen = len(s.trials)",
    "TensorBoard": "from torch.utils.tensorboard import SummaryWriter\nwith SummaryWriter('tb') as w:\n    w.add_scalar('a', 1.0)\n"
    "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as E\n"
    "e = E('tb'); e.Reload(); seen = e.Tags()['scalars']",
    "loguru": "from loguru import logger; logger.remove(); logger.add('l.log', format='{message}'); logger.info('x'); logger.remove(); seen = open('l.log').read()",
    "loguru, rotating": "from loguru import logger; logger.remove(); n = logger.add('notes.txt', rotation='1 KB', format='{message}')\n"
    "logger.info('x' * 2000); logger.remove(); seen = len(glob.glob('notes*'))",
    "logging.config": "import logging.config\nlogging.config.dictConfig({'version': 1, 'handlers': {'f': {'class': 'logging.FileHandler', 'filename': 'n.log'}},\n"
    "  'loggers': {'own': {'handlers': ['f'], 'level': 'INFO'}}})\nlogging.getLogger('own').info('x'); logging.shutdown(); seen = open('n.log').read()",
    "filelock": "import filelock\nwith filelock.FileLock('l.lock'):\n    open('notes.txt', 'a').write('x')\nseen = open('notes.txt').read()",
    "fsspec": "import fsspec\nwith fsspec.open('file://' + os.path.abspath('notes.txt'), 'w') as f:\n    f.write('x')\nseen = open('notes.txt').read()",
    "fsspec, moves": "import fsspec; fs = fsspec.filesystem('file'); fs.mv('notes.txt', 'n'); fs.rm('checkpoint-1', recursive=True); seen = sorted(os.listdir())",
}  # fmt: skip

_TRAINERS = {
    "Lightning checkpoints": "import lightning as L\nclass Net(L.LightningModule):\n    def __init__(self):\n        super().__init__(); self.l = torch.nn.Linear(2, 1)\n"
    "    def training_step(self, b, i):\n        return self.l(b[0]).sum()\n    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), 0.1)\n"
    "data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))\n"
    "logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)\n"
    "t = L.Trainer(max_epochs=1, accelerator='cpu', logger=False, enable_progress_bar=False, enable_model_summary=False,\n"
    "  callbacks=[L.pytorch.callbacks.ModelCheckpoint('ck', save_last=True)]); t.fit(Net(), data)\n"
    "seen = (sorted(os.listdir('ck')), 'state_dict' in torch.load('ck/last.ckpt', weights_only=False))",
    "Lightning's CSV log": "from lightning.pytorch.loggers import CSVLogger\nl = CSVLogger('.', name='l'); l.log_metrics({'a': 1.0}, 0); l.save()\n"
    "seen = open('l/version_0/metrics.csv').read()",
    "a checkpoint beside, then replaced": _NET + "torch.save(net.state_dict(), 'model.pt.tmp'); os.replace('model.pt.tmp', 'model.pt')\n"
    "seen = torch.load('model.pt')['weight'][0, 0].item()",
    "keep the best": _NET + "for n in range(3):\n    torch.save(net.state_dict(), f'm{n}.pt'); shutil.copyfile(f'm{n}.pt', 'model.pt'); os.remove(f'm{n}.pt')\n"
    "seen = (sorted(glob.glob('*.pt')), torch.load('model.pt')['bias'].tolist())",
    "torch.save of an optimizer": _NET + "o = torch.optim.Adam(net.parameters()); net(torch.ones(1, 2)).sum().backward(); o.step()\n"
    "torch.save(o.state_dict(), 'model.pt'); seen = len(torch.load('model.pt')['state'])",
    "AOTInductor's package": "p = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)); torch.export.save(p, 'new.pt2'); seen = zipfile.is_zipfile('new.pt2')",
    "profiler, tensorboard": "with torch.profiler.profile(on_trace_ready=torch.profiler.tensorboard_trace_handler('tb')):\n    torch.ones(3) + 1\n"
    "seen = len(os.listdir('tb'))",
    "profiler, gzip": "with torch.profiler.profile() as p:\n    torch.ones(3) + 1\np.export_chrome_trace('t.json.gz'); seen = 'traceEvents' in json.load(gzip.open('t.json.gz'))",
    "profiler, stacks": "with torch.profiler.profile(with_stack=True) as p:\n    torch.ones(3) + 1\np.export_stacks('s.txt'); seen = os.path.exists('s.txt')",
    "cProfile": "import cProfile; cProfile.run('1 + 1', 'p.out'); import pstats; seen = pstats.Stats('p.out').total_calls > 0",
    "tracemalloc": "import tracemalloc; tracemalloc.start(); tracemalloc.take_snapshot().dump('t'); tracemalloc.stop(); seen = os.path.getsize('t') > 0",
    "faulthandler": "import faulthandler; f = open('notes.txt', 'w'); faulthandler.dump_traceback(f); f.close(); seen = 'most recent' in open('notes.txt').read()",
    "torch.hub's folder here": "torch.hub.set_dir('hub'); os.makedirs(torch.hub.get_dir()); seen = os.path.isdir('hub')",
    "a C++ file by torch": _NET + "torch.jit.save(torch.jit.trace(net, torch.ones(1, 2)), 'n.pt'); seen = torch.jit.load('n.pt')(torch.ones(1, 2)).tolist()",
}  # fmt: skip

_LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"

_SYSTEM = {
    "openat2-like flags": "d = os.open('n', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640); os.write(d, b'x'); os.close(d)\n"
    "seen = oct(os.stat('n').st_mode), open('n').read()",
    "creat by C": _LIBC + "d = libc.creat(b'n', 0o644); libc.write(d, b'x', 1); libc.close(d); seen = open('n').read()",
    "fopen by C, append": _LIBC + "libc.fopen.restype = ctypes.c_void_p\nfor n in range(2):\n    f = ctypes.c_void_p(libc.fopen(b'n', b'a'))\n"
    "    libc.fputs(b'x', f); libc.fclose(f)\nseen = open('n').read()",
    "rename by C of a new file": _LIBC + "open('a', 'w').write('x'); libc.rename(b'a', b'b'); seen = (os.path.exists('a'), open('b').read())",
    "unlink by C of a new file": _LIBC + "open('a', 'w').write('x'); libc.unlink(b'a'); seen = os.path.exists('a')",
    "rmdir by C of a new folder": _LIBC + "os.mkdir('a'); libc.rmdir(b'a'); seen = os.path.exists('a')",
    "symlink by C": _LIBC + "libc.symlink(b'log.csv', b'l'); seen = os.readlink('l')",
    "link by C of a new file": _LIBC + "open('a', 'w').write('x'); libc.link(b'a', b'b'); seen = open('b').read()",
    "truncate by C of a new file": _LIBC + "open('a', 'w').write('xyz'); libc.truncate(b'a', ctypes.c_long(1)); seen = open('a').read()",
    "utimes by C of a new file": _LIBC + "open('a', 'w').close(); libc.utimes(b'a', (ctypes.c_long * 4)(1, 0, 1, 0)); seen = os.stat('a').st_mtime",
    "chown of a new file": "open('a', 'w').close(); os.chown('a', os.getuid(), os.getgid()); seen = os.stat('a').st_uid == os.getuid()",
    "a fifo by Python": "os.mkfifo('p'); t = threading.Thread(target=lambda: open('p', 'w').write('x')); t.start(); seen = open('p').read(); t.join()",
    "posix_spawn": "pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'echo x > n'], os.environ); os.waitpid(pid, 0); seen = open('n').read()",
    "os.fwalk and unlink": "for _, _, names, d in os.fwalk('checkpoint-1'):\n    for n in names:\n        os.unlink(n, dir_fd=d)\nseen = os.listdir('checkpoint-1')",
    "os.fork and exec": "pid = os.fork()\nif pid == 0:\n    os.execvp('sh', ['sh', '-c', 'echo x > n'])\nos.waitpid(pid, 0); seen = open('n').read()",
    "os.chdir into a new folder": "os.makedirs('a/b'); os.chdir('a/b'); open('c', 'w').write('x'); subprocess.run('cat c', shell=True); os.chdir('../..'); seen = open('a/b/c').read()",
    "shutil.make_archive": "shutil.make_archive('n', 'gztar', 'checkpoint-1'); seen = sorted(tarfile.open('n.tar.gz').getnames())",
    "shutil.unpack_archive": "shutil.make_archive('n', 'zip', 'checkpoint-1'); shutil.unpack_archive('n.zip', 'o'); seen = sorted(os.listdir('o'))",
    "shutil.copystat": "shutil.copystat('log.csv', 'data.bin'); seen = os.stat('data.bin').st_mtime_ns == os.stat('log.csv').st_mtime_ns",
    "importlib of a new module": "open('own_new.py', 'w').write('x = 3'); sys.path.insert(0, os.getcwd()); import own_new; sys.path.pop(0); seen = own_new.x",
    "runpy of a new script": "import runpy; open('s.py', 'w').write('y = 4'); seen = runpy.run_path('s.py')['y']",
    "a subprocess reads what Python removed": "os.remove('notes.txt'); seen = subprocess.run(['ls', 'notes.txt'], capture_output=True).returncode",
    "a subprocess reads what Python moved": "os.rename('notes.txt', 'n'); seen = subprocess.run(['cat', 'n'], capture_output=True).stdout",
    "a pool that writes": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as p:\n"
    "    list(p.map(lambda n: subprocess.run(f'echo {n} > n{n}', shell=True), range(8)))\nseen = sorted(glob.glob('n[0-9]'))",
    "asyncio subprocess": "import asyncio\nasync def go():\n    p = await asyncio.create_subprocess_shell('echo x > n'); await p.wait()\nasyncio.run(go()); seen = open('n').read()",
    "a Unix socket of asyncio": "import asyncio\nasync def go():\n    s = await asyncio.start_unix_server(lambda r, w: w.close(), 'sock'); s.close(); return os.path.exists('sock') or True\nseen = asyncio.run(go())",
    "multiprocessing manager": "import multiprocessing as m\nwith m.get_context('fork').Manager() as g:\n    d = g.dict(); d['a'] = 1; seen = dict(d)",
}  # fmt: skip

#: Name -> the script's lines.
WAYS = {
    **_SHELLS, **_GITS, **_HUGGING_FACE, **_FORMATS, **_TRACKERS, **_TRAINERS, **_SYSTEM,
}  # fmt: skip
