#!/usr/bin/env python
# coding: utf-8

# # Digits
# Exported with `jupyter nbconvert --to script`.

# In[1]:


get_ipython().run_line_magic('pip', 'install -q numpy')
get_ipython().run_line_magic('matplotlib', 'inline')


# In[2]:


import numpy as np

weights = np.zeros(4)


# In[3]:


get_ipython().run_cell_magic('time', '', 'for step in range(1, 4):\n    weights += 1 / step\n    print(f"step {step} loss {4 - weights.sum() / 4:.3f}")\n')


# In[4]:


get_ipython().system('echo "from a cell"')
weights
